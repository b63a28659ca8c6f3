"""Weights in fewer bits, and what that does to a model's distributions."""
