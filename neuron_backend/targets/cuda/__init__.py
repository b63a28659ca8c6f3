"""CUDA target: programs recorded as CUDA graphs."""
