"""Verifications that compare distributions."""
