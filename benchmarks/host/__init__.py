"""Benchmarks of what the host adds to a forward: sampling, the loop, streaming."""
