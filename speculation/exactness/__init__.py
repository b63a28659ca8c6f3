"""Verification by enumeration that a generator's output has the target's distribution."""
