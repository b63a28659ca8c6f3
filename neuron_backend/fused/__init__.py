"""Choosing within the forward: a chain of processors and a selection as part of a decoder's programs."""
