"""The tokens in a decoder's KV cache, and feeding the missing ones."""
