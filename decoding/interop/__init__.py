"""Bridges to Hugging Face transformers."""
