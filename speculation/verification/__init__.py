"""Verification of drafts by comparing distributions; exact match is in ``decoding/engine/exact_match``."""
