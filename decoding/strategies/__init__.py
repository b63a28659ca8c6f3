"""Strategies above the generator: guidance, ensembles, and choices among samples."""
