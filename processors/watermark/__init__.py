"""Watermarks and their detectors."""
