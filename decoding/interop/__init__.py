"""Interoperation with Hugging Face transformers."""
