"""Ending a row with a sequence of tokens."""

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
    """The ids of a sequence that was met: a tuple of its own kind, for a pair of matches is one too."""

    __slots__ = ()


@attrs.define(eq=False)
class _Node:
    """Where a sequence, read from its end, has come to."""

    code: int = 0
    """Of the sequence that is complete here, if one is."""

    before: "dict[int, _Node]" = attrs.field(factory=dict)
    """By the token that comes next, the one before."""


def _sequences(value: Any) -> tuple[TokenSequence, ...]:
    rows = as_list(value)
    top_choices = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str) else []
    if not top_choices:
        raise TypeError(f"'sequences' must be a sequence of token ids or several: got {value!r}")
    if not any(isinstance(one, Iterable) for one in top_choices):
        top_choices = [top_choices]
    return tuple(TokenSequence(token_ids("sequences", one)) for one in top_choices)


@attrs.frozen(eq=False)
class StopSequences(Stop):
    """
    End a row when its newest tokens are any of *sequences*.

    The first to be complete wins; of several that one token completes, the longest. The prompt
    is not searched. Text says the same by other tokens where a tokenizer splits it otherwise:
    :class:`~.stop_strings.StopStrings` finds that too.

    Looks up the newest token, and goes back only as far as the tokens are the end of a sequence.
    """

    sequences: tuple[TokenSequence, ...] = attrs.field(converter=_sequences)
    """One sequence of ids or several, of any lengths."""

    hide: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """Whether the text leaves the sequence out. The ids keep it."""

    _ends: _Node = attrs.field(init=False, repr=False)
    _longest: int = attrs.field(init=False, repr=False)

    @_ends.default
    def _trie_of_the_reversed(self) -> _Node:
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
        """The code of the longest sequence that *ids* end in."""
        node, code = self._ends, 0
        for token in reversed(ids):
            if token not in node.before:
                break
            node = node.before[token]
            code = node.code or code
        return code
