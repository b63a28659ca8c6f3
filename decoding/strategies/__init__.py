"""Strategies above the generator."""
