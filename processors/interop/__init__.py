"""Exchange of chains with transformers and vLLM."""
