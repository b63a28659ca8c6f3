"""Incremental translation of a text to the ids of another vocabulary."""

from collections.abc import Callable, Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from ...decoding.common_prefix_length import common_prefix_length

Ints = NDArray[np.int64]

Split = Callable[[Ints, int], Iterator[tuple[int, int, bool]]]
"""
Chunks of a text from a chunk boundary on: start, end and whether it starts a text.

The end of a chunk may depend on its own tokens and the next one.
"""

Encode = Callable[[list[int], bool], list[int]]
"""Encode a chunk in the other vocabulary, given whether it starts a text."""


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


@attrs.frozen(eq=False)
class Translation:
    """A text and its translation, chunk by chunk."""

    tokens: Ints = attrs.field(factory=_none)
    """Ids of the text."""

    own: Ints = attrs.field(factory=_none)
    """Ids of the translation."""

    ends: Ints = attrs.field(factory=_none)
    """Ends of the chunks in the text."""

    own_ends: Ints = attrs.field(factory=_none)
    """Ends of the chunks in the translation."""

    def of(self, tokens: Ints, split: Split, encode: Encode) -> "Translation":
        """Translate *tokens*, reusing the chunks of the common prefix."""
        same = common_prefix_length(self.tokens, tokens)
        # A chunk that ends exactly with the common prefix may end elsewhere now.
        kept = int(self.ends.searchsorted(same))
        start, own_start = (int(self.ends[kept - 1]), int(self.own_ends[kept - 1])) if kept else (0, 0)
        own: list[int] = []
        ends, own_ends = [], []
        for first, end, starts_text in split(tokens, start):
            own += encode(tokens[first:end].tolist(), starts_text)
            ends.append(end)
            own_ends.append(own_start + len(own))
        return Translation(
            tokens.copy(),
            _with(self.own[:own_start], own),
            _with(self.ends[:kept], ends),
            _with(self.own_ends[:kept], own_ends),
        )


def _with(old: Ints, new: list[int]) -> Ints:
    return np.concatenate([old, np.array(new, dtype=np.int64)])
