"""Saving and loading decoders, in folders and on the Hugging Face hub."""
