"""The comparison with transformers and llama.cpp on the same weights."""
