"""Grammar-constrained decoding."""
