"""Ways to generate above the decoding loop: beams, guidance, ensembles, and choices among samples."""
