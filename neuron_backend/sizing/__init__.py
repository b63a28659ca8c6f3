"""Estimates of a decoder's memory, cores and speed, before anything is compiled."""
