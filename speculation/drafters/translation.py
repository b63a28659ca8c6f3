"""A text in the ids of another vocabulary, kept while it grows."""

from collections.abc import Callable, Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

Split = Callable[[Ints, int], Iterator[tuple[int, int, bool]]]
"""
The chunks of a text from a place on where one begins: start, end and whether it opens a text.

Where a chunk ends may depend on its own tokens and the one behind it.
"""

Encode = Callable[[list[int], bool], list[int]]
"""A chunk, and whether it opens a text, to ids of the other vocabulary."""


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


@attrs.frozen(eq=False)
class Translation:
    """A text, chunk by chunk, and what each chunk is in other ids."""

    tokens: Ints = attrs.field(factory=_none)
    """The text."""

    own: Ints = attrs.field(factory=_none)
    """The other ids."""

    ends: Ints = attrs.field(factory=_none)
    """Where each chunk ends in the text."""

    own_ends: Ints = attrs.field(factory=_none)
    """Where it ends in the other ids."""

    def of(self, tokens: Ints, split: Split, encode: Encode) -> "Translation":
        """The same of other *tokens*: what they have in common with these is not encoded again."""
        same = _common(self.tokens, tokens)
        # A chunk that ends with what is the same might end elsewhere now.
        kept = int(self.ends.searchsorted(same))
        start, own_start = (int(self.ends[kept - 1]), int(self.own_ends[kept - 1])) if kept else (0, 0)
        own: list[int] = []
        ends, own_ends = [], []
        for first, end, opens in split(tokens, start):
            own += encode(tokens[first:end].tolist(), opens)
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


def _common(one: Ints, other: Ints) -> int:
    """How many tokens two texts begin with alike."""
    reach = min(len(one), len(other))
    differs = one[:reach] != other[:reach]
    return int(differs.argmax()) if differs.any() else reach
