"""Conversion of processors from and to transformers and vLLM."""
