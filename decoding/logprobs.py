"""What a token's probability was."""

import attrs


@attrs.frozen
class TokenLogprob:
    """The log-probability of one token, and of the likeliest in its place."""

    id: int
    """The token."""

    logprob: float
    """Natural logarithm of its probability; ``-inf`` for a token that was forbidden."""

    rank: int
    """1 for the likeliest; tokens of equal probability share the best rank among them."""

    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens and their log-probabilities, the likeliest first, as many as were asked for."""
