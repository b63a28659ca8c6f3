"""
Verification of drafts by comparing distributions.

The default, exact match, is in ``decoding/engine/exact_match_verification.py``.
"""
