"""A decoder whose logits come from a table: exact in every width and batch, and fast."""

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from ..forward_checks import (
    check_copy,
    check_inputs,
    check_row_inputs,
    check_row_widths,
    check_tree_inputs,
    check_tree_widths,
)
from ..protocols import DecoderShape
from ..trees import depths, first_branch, paths


def last_token(prefix: Sequence[int]) -> int:
    """The table line of a decoder that depends on the newest token only."""
    return prefix[-1]


def whole_prefix(prefix: Sequence[int]) -> int:
    """A table line that depends on every token and its position, so that any wrong slot shows."""
    state = 1
    for token in prefix:
        state = (state + token + 1442695040888963407) * 6364136223846793005 % (1 << 64)
    return state >> 33


@attrs.define(eq=False)
class ScriptedDecoder:
    """
    A decoder that reads its logits from *table*.

    It keeps a position-addressed cache of ids: the logits of a column are looked up with the ids in
    the slots up to its position. As in a model, a slot becomes invalid when a token before it
    changes. So tokens that were fed wrongly, late, not again, or at another position change the
    logits.
    """

    table: Tensor
    """``[lines, vocab]``."""

    batch_size: int = 1
    max_length: int = 64
    widths: tuple[int, ...] = (1, 5, 16)
    scored_width: int = 5
    line: Callable[[Sequence[int]], int] = whole_prefix
    """A prefix to a line of the table, modulo its length: this, :func:`last_token`, or another function."""

    tree_widths: tuple[int, ...] = ()
    """Columns of the tree forwards, ascending; empty if trees are not supported."""

    row_widths: tuple[int, ...] = ()
    """Columns of the forwards of one row, ascending, of :attr:`widths`; empty if there are none."""

    copies_rows: bool = False
    """Whether rows can be copied."""

    shape: DecoderShape = attrs.field(init=False)
    slots: Tensor = attrs.field(init=False)
    """The cache of ids, ``[batch, max_length]``; -1 where it is invalid."""

    forwards: list[int] = attrs.field(factory=list, init=False)
    """The widths of the forwards so far."""

    def __attrs_post_init__(self) -> None:
        """Lay out an empty cache."""
        check_tree_widths(self.tree_widths)
        check_row_widths(self.row_widths, self.widths)
        vocab_size = self.table.shape[1]
        self.shape = DecoderShape(
            self.batch_size, self.max_length, vocab_size, self.widths, self.scored_width
        )
        self.slots = torch.full((self.batch_size, self.max_length), -1)

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """See :class:`~decodekit.decoding.protocols.Decoder`."""
        check_inputs(ids, cache_pos, self.shape)
        return self._forward(ids, cache_pos, range(len(ids)))

    def forward_row(self, ids: Tensor, cache_pos: Tensor, row: int) -> Tensor:
        """See :class:`~decodekit.decoding.optional_protocols.FeedsRows`."""
        check_row_inputs(ids, cache_pos, row, self.shape, self.row_widths)
        return self._forward(ids, cache_pos, [row])

    def copy_rows(self, source: Tensor, upto: int) -> None:
        """See :class:`~decodekit.decoding.optional_protocols.CopiesRows`."""
        check_copy(source, upto, self.shape)
        written = source != torch.arange(self.batch_size)
        copied = self.slots[source[written]]
        copied[:, upto:] = -1
        self.slots[written] = copied

    def _forward(self, ids: Tensor, cache_pos: Tensor, rows: Sequence[int]) -> Tensor:
        """Logits of *ids*, whose lines are fed to *rows*."""
        width = ids.shape[1]
        self.forwards.append(width)
        real = (ids >= 0).nonzero().tolist()
        for line, column in real:
            self._write(rows[line], int(cache_pos[line]) + column, int(ids[line, column]))
        logits = torch.full((len(ids), width, self.shape.vocab_size), torch.nan)
        for line, column in real:
            prefix = self.slots[rows[line], : int(cache_pos[line]) + column + 1].tolist()
            logits[line, column] = self.table[self.line(prefix) % len(self.table)]
        return logits if width <= self.shape.scored_width else logits[:, -1:]

    def forward_tree(self, ids: Tensor, cache_pos: Tensor, parents: Tensor) -> Tensor:
        """See :class:`~decodekit.decoding.protocols.ScoresTrees`."""
        check_tree_inputs(ids, cache_pos, parents, self.shape, self.tree_widths)
        self.forwards.append(ids.shape[1])
        tree = ids.numpy(), parents.numpy()
        depth, path, branch = depths(*tree), paths(*tree), first_branch(*tree)
        logits = torch.full((*ids.shape, self.shape.vocab_size), torch.nan)
        for row, column in (ids >= 0).nonzero().tolist():
            start = int(cache_pos[row])
            if branch[row, column]:
                self._write(row, start + int(depth[row, column]), int(ids[row, column]))
            prefix = self.slots[row, :start].tolist() + ids[row, path[row, column]].tolist()
            logits[row, column] = self.table[self.line(prefix) % len(self.table)]
        return logits

    def _write(self, row: int, position: int, token: int) -> None:
        if self.slots[row, position] != token:
            self.slots[row, position:] = -1
            self.slots[row, position] = token
