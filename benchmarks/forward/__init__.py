"""Benchmarks of one forward: positions, matrix products, weight formats, sampling on the device, a GPU."""
