"""
Benchmarks as a user runs them: ``python -m decodekit bench``, and what the scripts in ``benchmarks/`` share.

A room of its own that is installed: the scripts lie beside the bundled pair, which is not.
"""
