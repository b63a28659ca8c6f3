"""The blocks of the vocabulary, of which one is drawn before a token inside it."""

import math


def block_size(vocab: int) -> int:
    """How many tokens there are in each block but the last: √vocab, rounded up."""
    return math.isqrt(vocab - 1) + 1
