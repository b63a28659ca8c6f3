"""Benchmarks of whole generations: latency, throughput, start."""
