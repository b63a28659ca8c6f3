"""CPU target: AOTInductor programs, with decodekit's own kernels for products and attention."""
