"""The graphs that compilers are given, and what is known against them."""
