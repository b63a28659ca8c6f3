"""
Protocols of a grammar engine for :class:`~decodekit.processors.Grammar`.

A :class:`Language` creates matchers; a :class:`Matcher` follows one text token by token. Texts
consist of generated tokens, without the end of sequence.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


class Matcher(Protocol):
    """
    State of one text in a grammar.

    Results of all methods depend only on the tokens taken, not on the calls that led there.
    """

    def mask(self) -> Tensor:
        """
        Mask of the tokens that may come next, ``[tokens]`` bool on the host.

        All False if the text cannot continue. It may omit tokens that :meth:`advance` would take,
        if an engine wants one canonical tokenization. Its end-of-sequence entries are ignored.
        Later calls must not modify the tensor.
        """
        ...

    def advance(self, ids: Sequence[int]) -> int:
        """
        Take *ids* up to the first that the grammar refuses; returns how many were taken.

        Accepts any integers, also outside the vocabulary. A refusal is not an error: the matcher
        is positioned after the last token taken.
        """
        ...

    def rewind(self, n: int) -> None:
        """Take back the last *n* tokens taken."""
        ...

    def finished(self) -> bool:
        """Whether the text may end here; it may also be able to continue."""
        ...


@runtime_checkable
class Language(Protocol):
    """A grammar over a vocabulary, for any number of concurrent matchers."""

    @property
    def eos(self) -> tuple[int, ...]:
        """End-of-sequence token ids. Not part of the grammar, whatever their text."""
        ...

    def matcher(self) -> Matcher:
        """A matcher at the start of a text, independent of all others."""
        ...
