"""Proof by enumeration that a generator's text has the target's distribution."""
