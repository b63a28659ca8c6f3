"""Targets: compilers of a decoder's programs, and the runtimes that run them."""
