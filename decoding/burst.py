"""What one round gives to one row."""

import attrs

from .logprobs import TokenLogprob
from .protocols import Ending

MAX_LENGTH = Ending("max_length")
"""The row's last token has no position left to be fed at."""


@attrs.define(eq=False)
class Burst:
    """What one round gave to one row. Not to be changed; that is not looked after, for it takes time."""

    row: int
    ids: tuple[int, ...]
    ending: Ending | None
    logprobs: tuple[TokenLogprob, ...] | None = None
