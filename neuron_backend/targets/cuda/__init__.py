"""NVIDIA GPUs: CUDA graphs."""
