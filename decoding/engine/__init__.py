"""The decoding loop: propose, score, sample, verify, stop."""
