"""Comparisons of a decoder with the stock model."""
