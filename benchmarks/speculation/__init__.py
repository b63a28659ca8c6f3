"""Benchmarks of speculative decoding: speed and acceptance."""
