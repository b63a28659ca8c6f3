"""Feeding single rows, and copying rows, before all rows are scored in one forward."""

from collections.abc import Sequence
from typing import cast

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from ..common_prefix_length import common_prefix_length
from ..optional_protocols import CopiesRows, FeedsRows, copies_rows, does_skip_padding, row_widths
from ..protocols import Decoder
from .cached_tokens import CachedTokens

Ints = NDArray[np.int64]

_ONE_ROW = 1 << 33
"""Added to a width, it is the number of a program of one row, which no program of all rows has."""


@attrs.define(eq=False)
class CaughtUp:
    """What was done for rows that lack more than one scoring forward takes. Treat as immutable."""

    starts: list[int]
    """From where on each row is still to be fed."""

    waiting: list[int]
    """Rows that are to be fed on in a later step, before they are scored."""

    forwards: int = 0
    columns: int = 0
    """Columns of these forwards, each of one row."""

    tokens: int = 0


class RowFeeder:
    """
    Brings rows that lack many tokens so far that one narrow forward of all rows takes the rest.

    Where the decoder :class:`~..optional_protocols.CopiesRows`, what another row holds is copied from it: a
    shared prefix is fed once. Where it :class:`~..optional_protocols.FeedsRows`, a row is fed by itself if
    that takes fewer columns than forwards of all rows.

    Args:
        decoder: The decoder; its optional protocols are read once.

        kept: What is called: the decoder, or a weak proxy of it.

        cached: The record of its cache, which is kept up to date.
    """

    def __init__(self, decoder: Decoder, kept: Decoder, cached: CachedTokens) -> None:
        self._decoder, self._shape = kept, decoder.shape
        self._scored = max(width for width in self._shape.widths if width <= self._shape.scored_width)
        self._cached = cached
        self.widths = row_widths(decoder)
        """Columns of the forwards of one row; empty if there are none."""

        self._skips_padding = does_skip_padding(decoder)
        self.copies = copies_rows(decoder)
        """Whether rows can be copied."""

        self.copied = [0] * self._shape.batch_size
        """The tokens that each row was copied so far, beyond those that it held."""

        self._waiting: list[int] = []
        """Rows that were not caught up yet, in the order in which they began."""

    def catch_up(
        self,
        tokens: Ints,
        starts: Sequence[int],
        ends: Sequence[int],
        wanted: Sequence[int],
        most: int | None,
    ) -> CaughtUp:
        """
        Feed or copy what rows lack beyond one scoring forward.

        Rows are caught up one after the other, in the order in which they began.

        Args:
            tokens: The tokens of each row, ``[rows, capacity]``.

            starts: From where on each row lacks its tokens; of an idle row its end.

            ends: The number of tokens of each row.

            wanted: How many of the last ones are scored, which are left to the scoring forward.

            most: The most columns of these forwards together, but for one forward of the narrowest width;
                where the decoder skips padding, the most tokens of a forward. None for any number.
        """
        result = CaughtUp(list(starts), [])
        behind = self._behind(result.starts, ends)
        if self.copies:
            for row in behind:
                # A row that waits for its turn copies once then, not what is new in every step.
                least = ends[row] - self._scored if row in self._waiting else 0
                self._copy(row, tokens[row], ends[row] - wanted[row], least, result)
            behind = self._behind(result.starts, ends)
        self._waiting = []
        lacking = {row: (result.starts[row], ends[row] - wanted[row]) for row in behind}
        if not lacking or not self._saves(lacking, tokens, result.starts, ends, wanted):
            return result
        left = most
        for row, (_, held) in lacking.items():
            if self.copies:
                least = 0 if left is None or left > 0 else ends[row] - self._scored
                self._copy(row, tokens[row], held, least, result)
            while ends[row] - result.starts[row] > self._scored and (left is None or left > 0):
                width = self._feed(row, tokens[row], held, left, result)
                left = None if left is None else left - width
        self._waiting = result.waiting = self._behind(result.starts, ends, list(lacking))
        return result

    def _behind(
        self, starts: Sequence[int], ends: Sequence[int], order: Sequence[int] | None = None
    ) -> list[int]:
        """The rows that one scoring forward does not suffice for, those that began earlier first."""
        if order is None:
            new = (row for row in range(len(ends)) if row not in self._waiting)
            order = [*(row for row in self._waiting if row < len(ends)), *new]
        return [row for row in order if ends[row] - starts[row] > self._scored]

    def _saves(
        self,
        lacking: dict[int, tuple[int, int]],
        tokens: Ints,
        starts: Sequence[int],
        ends: Sequence[int],
        wanted: Sequence[int],
    ) -> bool:
        """Whether rows by themselves take fewer columns than forwards of all rows."""
        if not self.widths:
            return False
        shape = self._shape
        others = [wanted[row] if row in lacking else ends[row] - start for row, start in enumerate(starts)]
        alone = self._columns_alone(lacking, tokens)
        alone += shape.batch_size * columns_of_forwards(max(others), shape.widths)
        longest = max(end - start for start, end in zip(starts, ends, strict=True))
        return alone < shape.batch_size * columns_of_forwards(longest, shape.widths)

    def _columns_alone(self, lacking: dict[int, tuple[int, int]], tokens: Ints) -> int:
        """The columns of the forwards of single rows; a row is copied from an earlier one where it can be."""
        total, earlier = 0, list[tuple[int, int]]()
        for row, (start, stop) in lacking.items():
            if self.copies:
                shared = (
                    common_prefix_length(tokens[row], tokens[one][: min(stop, reach)])
                    for one, reach in earlier
                )
                start = max([start, *shared])
            total += columns_of_forwards(stop - start, self.widths)
            earlier.append((row, stop))
        return total

    def _copy(self, row: int, tokens: Ints, held: int, least: int, result: CaughtUp) -> None:
        """
        Copy what another row holds of *tokens*, up to *held*, if it is more than *row* itself holds.

        Fewer than *least* tokens are not copied.
        """
        start = result.starts[row]
        source, shared = row, start
        for other, valid in enumerate(self._cached.valid):
            if valid > shared and (common := self._cached.common(other, tokens, held)) > shared:
                source, shared = other, common
        if source == row or shared < least:
            return
        sources = torch.arange(self._shape.batch_size)
        sources[row] = source
        self._cached.forget_from(row, 0)
        cast(CopiesRows, self._decoder).copy_rows(sources, shared)
        self._cached.copy(source, row, shared)
        self.copied[row] += shared - start
        result.starts[row] = shared

    def _feed(self, row: int, tokens: Ints, held: int, most: int | None, result: CaughtUp) -> int:
        """Feed one forward of *tokens* from where *row* starts, up to *held*; return its width."""
        start = result.starts[row]
        lacking, fitting = held - start, self.widths
        if most is not None and self._skips_padding:
            lacking = min(lacking, most)
        elif most is not None:
            fitting = tuple(width for width in fitting if width <= most) or fitting[:1]
        width = next((one for one in fitting if one >= lacking), fitting[-1])
        new = tokens[start : start + min(width, lacking)]
        ids = torch.full((1, width), -1)
        # A wide forward scores its last column, so tokens are right-aligned.
        indent = width - len(new) if width > self._shape.scored_width else 0
        ids[0, indent : indent + len(new)] = torch.from_numpy(new)
        self._cached.forget_after(row, start, new)
        cast(FeedsRows, self._decoder).forward_row(ids, torch.tensor([start - indent]), row)
        self._cached.remember(row, start, new, width + _ONE_ROW)
        result.starts[row] = start + len(new)
        result.forwards, result.columns = result.forwards + 1, result.columns + width
        result.tokens += len(new)
        return width


def columns_of_forwards(missing: int, widths: Sequence[int]) -> int:
    """The columns of the forwards that feed *missing* tokens of a row, in the fewest forwards."""
    whole, rest = divmod(missing, widths[-1])
    return whole * widths[-1] + (next(width for width in widths if width >= rest) if rest else 0)
