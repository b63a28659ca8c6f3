"""Capabilities of a wrapped system's programs."""

from collections.abc import Iterable
from typing import Literal

import attrs

from ...decoding.protocols import DecoderShape


@attrs.frozen
class Window:
    """
    A program that feeds the same number of consecutive positions in every row.

    It attends to the cache before them and writes every row that it is given, each at its own positions.
    """

    columns: int
    """Tokens per row."""

    first: int = 0
    """
    The lowest position that it may begin at: 0, or 1 where the system treats a call with a token at
    position 0 as a prompt.
    """

    scores: Literal["every", "last", "none"] = "every"
    """Which columns' logits it returns."""

    one_row: bool = False
    """Whether it takes one row at a time and leaves the others unchanged, rather than all rows."""


@attrs.frozen
class Prefill:
    """
    A program that encodes prompts from position 0 on and scores their last tokens.

    It overwrites the first :attr:`columns` positions of the rows that it is given.
    """

    columns: int
    """Maximum tokens per row."""

    one_row: bool
    """Whether it takes one row at a time and leaves the others unchanged, rather than all rows."""

    least: int = 1
    """Minimum tokens in the longest row of a call."""

    ragged: bool = True
    """Whether it scores the last token of each row, rather than that of the longest rows only."""


def _ascending(windows: Iterable[Window]) -> tuple[Window, ...]:
    return tuple(sorted(windows, key=lambda window: window.columns))


@attrs.frozen
class Capabilities:
    """The programs of one system, and the sizes that they were compiled for."""

    batch_size: int
    """Rows."""

    max_length: int
    """Positions per row."""

    vocab_size: int
    """Logits per column."""

    windows: tuple[Window, ...] = attrs.field(converter=_ascending)
    """
    By columns, ascending. The narrowest scores every column. Where it has several, a single token is fed
    through it too: the columns behind the token are masked, and overwritten by the next tokens.
    """

    prefill: Prefill | None = None
    """The program that encodes prompts; None if they go through windows."""

    per_row_positions: bool = True
    """Whether rows may be at different positions in one call. If not, they take a call each."""

    def __attrs_post_init__(self) -> None:
        """Refuse capabilities on which no forward can be built."""
        sizes = {"batch_size": self.batch_size, "max_length": self.max_length, "vocab_size": self.vocab_size}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"'{name}' must be >= 1: got {size}")
        narrowest = self.windows[0] if self.windows else None
        if narrowest is None or narrowest.scores != "every":
            raise ValueError(f"'windows' must begin with one that scores every column: got {self.windows}")
        for window in self.windows:
            if window.first + window.columns > self.max_length:
                raise ValueError(
                    f"'windows' must fit into {self.max_length} positions, from position {window.first} on: "
                    f"got one of {window.columns} columns"
                )
        if narrowest.first > 0 and (self.prefill is None or self.prefill.least > 1):
            raise ValueError(f"'prefill' must take the token at position 0, which {narrowest} does not")
        if self.prefill is not None and self.prefill.columns > self.max_length:
            raise ValueError(
                f"'prefill' must have <= {self.max_length} columns, the positions: got {self.prefill.columns}"
            )

    @property
    def scoring(self) -> tuple[Window, ...]:
        """The windows that score every column."""
        return tuple(window for window in self.windows if window.scores == "every")

    @property
    def shape(self) -> DecoderShape:
        """
        Shapes of :meth:`.WrappedDecoder.forward`.

        ``scored_width`` is the widest window that scores every column; 1 means that drafts cannot be
        verified. Wider forwards score their last column. Width 1 is always offered.
        """
        widths = {window.columns for window in self.windows}
        if self.windows[-1].scores == "none":
            # A prompt of any length is one forward, since its last column takes another call.
            widths.add(self.max_length)
        if self.prefill is not None:
            widths.add(self.prefill.columns)
        scored = self.scoring[-1].columns
        kept = {width for width in widths if width > scored} | {window.columns for window in self.scoring}
        kept.add(1)
        return DecoderShape(self.batch_size, self.max_length, self.vocab_size, sorted(kept), scored)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the system cannot do that a decoder compiled here can, as sentences."""
        limits = []
        if self.shape.scored_width == 1:
            limits.append("no speculation: no program scores several columns")
        if (narrowest := self.windows[0].columns) > 1:
            limits.append(f"no program of one column: a single token takes a call of {narrowest} columns")
        if not self.per_row_positions:
            limits.append("one position at a time: rows at different positions take a call each")
        if self.prefill is not None and not self.prefill.one_row and self.batch_size > 1:
            limits.append("a prompt that joins a running batch encodes the other rows again")
        if self.prefill is None and self.windows[-1].columns == 1:
            limits.append("prompts are fed token by token")
        return tuple(limits)
