"""Stop sequences of token ids."""

from collections.abc import Iterable
from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from ..history import History
from ..protocols import Finish
from ..scores import Scores
from ..validation import as_list, token_ids
from .composition import Stop
from .newest_token import newest


class TokenSequence(tuple[int, ...]):
    """The ids of a matched sequence; a distinct type, since a pair of matches is a tuple too."""

    __slots__ = ()


@attrs.define(eq=False)
class _Node:
    """A node of the trie of reversed sequences."""

    code: int = 0
    """The code of the sequence that is complete here, or 0."""

    before: "dict[int, _Node]" = attrs.field(factory=dict)
    """The children, by the preceding token."""


def _sequences(value: Any) -> tuple[TokenSequence, ...]:
    rows = as_list(value)
    items = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str) else []
    if not items:
        raise TypeError(f"'sequences' must be a sequence of token ids or several: got {value!r}")
    if not any(isinstance(one, Iterable) for one in items):
        items = [items]
    return tuple(TokenSequence(token_ids("sequences", one)) for one in items)


@attrs.frozen(eq=False)
class StopSequences(Stop):
    """
    End a row when its newest tokens are any of *sequences*.

    The first to be complete wins; of several that one token completes, the longest. The prompt is not
    searched. The same text tokenized differently is not found;
    :class:`~.stop_strings.StopStrings` finds it.

    Compares backwards from the newest token, only as long as a sequence matches.
    """

    sequences: tuple[TokenSequence, ...] = attrs.field(converter=_sequences)
    """One sequence of ids or several, of any lengths."""

    hide: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """Whether the sequence is left out of the text. The ids keep it."""

    _ends: _Node = attrs.field(init=False, repr=False)
    _longest: int = attrs.field(init=False, repr=False)

    @_ends.default
    def _reversed_trie(self) -> _Node:
        root = _Node()
        for code, sequence in enumerate(self.sequences, start=1):
            node = root
            for token in reversed(sequence):
                node = node.before.setdefault(token, _Node())
            node.code = node.code or code
        return root

    @_longest.default
    def _length_of_the_longest(self) -> int:
        return max(map(len, self.sequences))

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One for each sequence."""
        return tuple(Finish("stop_sequence", matched=ids, hide=self.hide) for ids in self.sequences)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        codes, count = torch.zeros_like(history.length), history.num_generated()
        for row, tokens in enumerate(newest(history).tolist()):
            for column, token in enumerate(tokens):
                if token in self._ends.before:
                    ids = history.before(row, column)
                    reach = min(int(count[row, column]), self._longest)
                    codes[row, column] = self._match(ids[len(ids) - reach :].tolist())
        return codes

    def _match(self, ids: list[int]) -> int:
        """The code of the longest sequence at the end of *ids*."""
        node, code = self._ends, 0
        for token in reversed(ids):
            if token not in node.before:
                break
            node = node.before[token]
            code = node.code or code
        return code
