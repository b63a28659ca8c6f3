"""CPU target: AOTInductor programs, with decodekit's own skinny GEMM and attention kernels."""
