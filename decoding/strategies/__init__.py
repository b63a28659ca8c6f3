"""Ways to generate that stand on the decoding loop, or beside it."""
