"""Several sequences of one prompt at once, the best or a sample of them."""
