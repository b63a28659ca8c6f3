"""
What a grammar engine has to offer.

Two small protocols stand between :class:`~decodekit.processors.Grammar` and whatever knows
grammars: a :class:`Language` starts texts, and a :class:`Matcher` follows one text, token by
token. Texts are made of generated tokens alone, and the end of sequence is none of them.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


class Matcher(Protocol):
    """
    One text on its way through a grammar.

    What the four methods say depends on the tokens taken alone, not on how the matcher came to
    stand there.
    """

    def mask(self) -> Tensor:
        """
        Which tokens may come next, ``[tokens]`` bool on the host.

        All False where the text cannot go on. It may leave out what :meth:`advance` would take,
        where an engine wants one spelling of a text. What it says of the end of sequence is
        not looked at. The tensor is the caller's: later calls leave it as it is.
        """
        ...

    def advance(self, ids: Sequence[int]) -> int:
        """
        Take *ids* up to the first that the grammar refuses, and say how many were taken.

        Any integers may come, those outside the vocabulary included. A refusal is no error:
        the matcher stands behind the last token taken.
        """
        ...

    def rewind(self, n: int) -> None:
        """Take back the last *n* tokens taken."""
        ...

    def finished(self) -> bool:
        """Whether the text may end here. It may be able to go on as well."""
        ...


@runtime_checkable
class Language(Protocol):
    """A grammar over a vocabulary, which may be walked many times at once."""

    @property
    def eos(self) -> tuple[int, ...]:
        """The tokens that end a text. They stand outside the grammar, whatever their spelling."""
        ...

    def matcher(self) -> Matcher:
        """A matcher at the beginning of a text, independent of all others."""
        ...
