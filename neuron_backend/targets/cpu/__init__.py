"""The CPU: AOTInductor programs over kernels of our own."""
