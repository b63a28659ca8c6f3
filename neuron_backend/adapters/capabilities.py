"""What the programs of a wrapped system can do."""

from collections.abc import Iterable
from typing import Literal

import attrs

from ...decoding.protocols import DecoderShape


@attrs.frozen
class Window:
    """
    A program that feeds consecutive positions, as many in every row, over the cache before them.

    It writes every row that it is given, each at its own positions.
    """

    columns: int
    """Tokens of a row."""

    first: int = 0
    """
    The lowest position that it may begin at: 0, or 1 where a call with a token at position 0 would
    be taken for a prompt.
    """

    scores: Literal["every", "last", "none"] = "every"
    """Which of its columns' logits are to be had."""

    one_row: bool = False
    """Whether it takes one row at a time and leaves the others alone, rather than all of them."""


@attrs.frozen
class Prefill:
    """
    A program that encodes prompts from position 0 on and scores their last tokens.

    What stood in the rows that it is given is gone, up to :attr:`columns`.
    """

    columns: int
    """Tokens that a row may have at most."""

    one_row: bool
    """Whether it takes one row at a time and leaves the others alone, rather than all of them."""

    least: int = 1
    """Tokens that the longest row of a call must have at least."""

    ragged: bool = True
    """Whether it scores the last token of each row, rather than that of the longest rows alone."""


def _ascending(windows: Iterable[Window]) -> tuple[Window, ...]:
    return tuple(sorted(windows, key=lambda window: window.columns))


@attrs.frozen
class Capabilities:
    """The programs of one system, and what a decoder over them is compiled for."""

    batch_size: int
    """Rows."""

    max_length: int
    """Positions of a row."""

    vocab_size: int
    """Logits of a column."""

    windows: tuple[Window, ...] = attrs.field(converter=_ascending)
    """By their columns, ascending. The first feeds one token and scores it."""

    prefill: Prefill | None = None
    """How prompts are encoded; None if they are fed through windows alone."""

    per_row_positions: bool = True
    """Whether rows may stand at different positions in one call. If not, such rows take one each."""

    def __attrs_post_init__(self) -> None:
        """Refuse what no forward could be made of."""
        sizes = {"batch_size": self.batch_size, "max_length": self.max_length, "vocab_size": self.vocab_size}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"'{name}' must be >= 1: got {size}")
        single = self.windows[0] if self.windows else None
        if single is None or single.columns != 1 or single.scores != "every":
            raise ValueError(f"'windows' must begin with one of a scored column: got {self.windows}")
        for window in self.windows:
            if window.first + window.columns > self.max_length:
                raise ValueError(
                    f"'windows' must fit into {self.max_length} positions, from position {window.first} on: "
                    f"got one of {window.columns} columns"
                )
        if single.first > 0 and (self.prefill is None or self.prefill.least > 1):
            raise ValueError(f"'prefill' must take the token at position 0, which {single} does not")
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
        The shapes of the protocol's forwards.

        As many columns are scored as the widest scoring window has: 1 means that drafts cannot be
        verified. Any wider forward scores its last column.
        """
        widths = {window.columns for window in self.windows}
        if self.windows[-1].scores == "none":
            # Its last column takes a call more: once a prompt is enough.
            widths.add(self.max_length)
        if self.prefill is not None:
            widths.add(self.prefill.columns)
        scored = self.scoring[-1].columns
        kept = {width for width in widths if width > scored} | {window.columns for window in self.scoring}
        return DecoderShape(self.batch_size, self.max_length, self.vocab_size, sorted(kept), scored)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the system cannot do that a decoder compiled here can, in words."""
        said = []
        if self.shape.scored_width == 1:
            said.append("no speculation: no program scores several columns")
        if not self.per_row_positions:
            said.append("one position at a time: rows at different positions take a call each")
        if self.prefill is not None and not self.prefill.one_row and self.batch_size > 1:
            said.append("a prompt that joins a running batch encodes the other rows again")
        if self.prefill is None and self.windows[-1].columns == 1:
            said.append("prompts are fed token by token")
        return tuple(said)
