"""Weight quantization (int8, int4, float8) and matmuls with quantized weights."""
