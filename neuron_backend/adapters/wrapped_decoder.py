"""Base class of the adapters: turns one forward into calls of a wrapped system's programs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ...decoding.cache.slots import Slots
from ...decoding.forward_checks import check_inputs
from ...decoding.protocols import DecoderShape
from .cache_record import CacheRecord, Ints
from .capabilities import Capabilities, Prefill, Window
from .feed_plan import FeedPlan

_PREFILL_COST = 16
"""Assumed cost of one prefill, in calls of a window: a prefill computes far more."""


class WrappedDecoder(ABC):
    """
    A decoder over the programs of another system.

    The protocol lets the rows of a forward differ. Such a system has one program for prompts, and one for a
    token, for several tokens, or both, and a call takes and writes all rows through one of them. So a
    forward becomes one or several calls, in which

    - tokens at position 0 share no call with others where the system would treat all rows as
      prompts;
    - a window covers consecutive positions, none of them twice: of two columns at one position the
      later sees the earlier, and either's keys and values may be kept. A row's tokens are followed by
      the tokens recorded at the next positions, or by token 0 where there are none;
    - an idle row is fed at unused positions; a full row is fed its own last tokens;
    - tokens that a prompt's bucket overwrites are fed again before they are used.

    The number of calls of a forward depends on the cache's content. The logits do not, up to the rounding
    by which the system's programs differ.

    Call :meth:`reset` after anything else has fed the system.
    """

    capabilities: Capabilities
    """Capabilities of the wrapped programs."""

    shape: DecoderShape
    """Shapes that :meth:`forward` takes and returns."""

    calls: int
    """Number of calls of the system so far."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.shape = capabilities.shape
        self.calls = 0
        self._record = CacheRecord(capabilities.batch_size, capabilities.max_length)

    @property
    def limits(self) -> tuple[str, ...]:
        """What it cannot do that a decoder compiled here can, as sentences."""
        return self.capabilities.limits

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """
        Write *ids* to the cache and return the logits after them.

        Args:
            ids: Tokens to feed, ``[batch, width]`` int64, *width* one of ``shape.widths``; -1 is
                padding, anywhere in a row.

            cache_pos: Position of the first column of each row, ``[batch]`` int64.

        Returns:
            Logits ``[batch, width, vocab]`` float32, or ``[batch, 1, vocab]`` of the last column
            when *width* exceeds ``shape.scored_width``.

        Raises:
            ValueError: A wrong width, batch, id or position. The cache is unchanged.

            TypeError: A wrong dtype. The cache is unchanged.
        """
        check_inputs(ids, cache_pos, self.shape)
        tokens, start, width = ids.numpy(), cache_pos.numpy(), ids.shape[1]
        scored = width <= self.shape.scored_width
        lost, begin, end = self._record.enter(tokens, start)
        plan = FeedPlan.of(tokens, start, begin if scored else lost, end, scored, self.shape.vocab_size)
        with torch.no_grad():
            if not plan.pending.any():
                # Changes nothing, but timing a forward of padding must measure a real call.
                self._feed(self._window_for(width), plan)
            elif scored:
                self._catch_up(FeedPlan.refeed(lost, begin))
                self._feed_all(plan, width)
            else:
                self._catch_up(plan)
        return plan.logits

    def reset(self) -> None:
        """Treat the cache as empty; needed after anything else has fed the system."""
        self._record = CacheRecord(self.shape.batch_size, self.shape.max_length)
        Slots.of(self).forget()

    def advise_width(self, columns: int) -> str:
        """Advice on how to have *columns* columns scored, as a sentence."""
        return f"Compile the wrapped system with a program that scores {columns}"

    @abstractmethod
    def _call_window(self, window: Window, rows: Sequence[int], ids: Tensor, positions: Tensor) -> Tensor:
        """
        Call the program of *window*.

        Args:
            window: One of the windows in :attr:`capabilities`.

            rows: Indices of the rows fed: all rows, or one if the window takes one.

            ids: ``[rows, columns]`` int64.

            positions: ``[rows, columns]`` int64, consecutive in each row.

        Returns:
            Logits ``[rows, columns, vocab]``, or ``[rows, 1, vocab]`` of the last column. Ignored
            if the window scores none.
        """

    @abstractmethod
    def _call_prefill(self, prefill: Prefill, rows: Sequence[int], tokens: Sequence[Ints]) -> Tensor:
        """
        Call the program of *prefill*.

        Args:
            prefill: The prefill in :attr:`capabilities`.

            rows: Indices of the rows encoded: all rows, or one if it takes one.

            tokens: The ids of each row from position 0 on, at least one per row.

        Returns:
            Logits ``[rows, vocab]`` after each row's last token, or after that of the longest rows.
        """

    def _catch_up(self, plan: FeedPlan) -> None:
        """Feed pending tokens in few calls, through any program."""
        self._encode_prompts(plan)
        self._feed_all(plan, None)

    def _feed_all(self, plan: FeedPlan, width: int | None) -> None:
        """Feed pending tokens through windows: through that of *width* if given, else in few calls."""
        while (pending := plan.pending).any():
            window = self._window_for(int(pending.max()) if width is None else width, width is not None)
            early = np.flatnonzero((pending > 0) & (plan.begin < window.first))
            if len(early):
                self._feed_first(plan, early.tolist())
            else:
                self._feed(window, plan)

    def _window_for(self, columns: int, scored: bool = False) -> Window:
        """The smallest window of at least *columns*, scoring all of them if *scored*; else the widest."""
        windows = self.capabilities.scoring if scored else self.capabilities.windows
        return next((window for window in windows if window.columns >= columns), windows[-1])

    def _feed_first(self, plan: FeedPlan, rows: list[int]) -> None:
        """Feed the first tokens of each of *rows*, by a program that takes the token at position 0."""
        narrowest = self.capabilities.windows[0]
        if narrowest.first == 0:
            self._feed(narrowest, plan, rows)
        else:
            self._prefill(plan, rows, 1)

    def _encode_prompts(self, plan: FeedPlan) -> None:
        """Prefill prompts, and rows that are faster to encode again than to feed by windows."""
        prefill = self.capabilities.prefill
        if prefill is None:
            return
        pending = plan.pending
        rows = np.flatnonzero(pending > 0).tolist()
        widest = self.capabilities.windows[-1].columns
        starting = [row for row in rows if plan.begin[row] == 0]
        short = max((int(pending[row]) for row in starting), default=0) < prefill.least
        joining = [
            row
            for row in rows
            if plan.begin[row] > 0
            and plan.end[row] <= prefill.columns
            and -(-pending[row] // widest) > _PREFILL_COST * len(rows)
        ]
        if (starting and not short) or joining:
            self._prefill(plan, starting + joining, prefill.columns)

    def _prefill(self, plan: FeedPlan, rows: list[int], most: int) -> None:
        """Encode the first tokens of each of *rows*, up to *most*."""
        prefill = cast(Prefill, self.capabilities.prefill)
        if not prefill.one_row:
            self._prefill_together(prefill, plan, rows, most)
            return
        for row in rows:
            # Windows feed what is too short for prefill.
            if min(int(plan.end[row]), most) >= prefill.least:
                self._prefill_together(prefill, plan, [row], most)

    def _prefill_together(self, prefill: Prefill, plan: FeedPlan, rows: list[int], most: int) -> None:
        """Prefill up to *most* tokens of *rows* in one call, in which other rows repeat their own tokens."""
        record, together = self._record, rows if prefill.one_row else list(range(self.shape.batch_size))
        tokens = [
            record.prefix(row, min(int(plan.end[row]), most) if row in rows else prefill.columns)
            for row in together
        ]
        longest = max(map(len, tokens))
        before = record.intact[together]
        # If the call fails, the rows' content is unknown.
        record.intact[together] = 0
        self.calls += 1
        logits = self._call_prefill(prefill, together, tokens)
        for at, row in enumerate(together):
            count = len(tokens[at])
            record.fed(row, 0, count)
            if count == prefill.columns:
                # The positions after the bucket are unchanged.
                record.intact[row] = max(int(record.intact[row]), int(before[at]))
            if row not in rows:
                continue
            if prefill.ragged or count == longest:
                plan.deliver(row, count - 1, logits[at : at + 1])
                plan.begin[row] = max(int(plan.begin[row]), count)
            else:
                plan.begin[row] = max(int(plan.begin[row]), count - 1)

    def _feed(self, window: Window, plan: FeedPlan, rows: Sequence[int] | None = None) -> None:
        """Feed each row the next columns of *window*; only those of *rows*, if given, make progress."""
        advancing = self._advancing(window, plan) if rows is None else rows
        if not window.one_row:
            self._feed_together(window, plan, advancing, range(self.shape.batch_size))
            return
        for row in advancing:
            self._feed_together(window, plan, [row], [row])

    def _advancing(self, window: Window, plan: FeedPlan) -> list[int]:
        """The rows in which *window* makes progress."""
        pending = plan.pending
        if window.scores == "every":
            return np.flatnonzero(pending > 0).tolist()
        advancing = pending > 1
        if window.scores == "last" and self.capabilities.per_row_positions:
            # A row with enough tokens can end in the last column, which is scored.
            advancing |= (pending > 0) & (plan.end >= window.first + window.columns)
        return np.flatnonzero(advancing).tolist()

    def _feed_together(
        self, window: Window, plan: FeedPlan, advancing: Sequence[int], together: Sequence[int]
    ) -> None:
        """One call of *window* over the rows *together*, of which those *advancing* make progress."""
        record = self._record
        starts = self._starts(window, plan, advancing, together)
        ids = np.stack([record.window(row, starts[row], window.columns) for row in together])
        positions = np.stack([starts[row] + np.arange(window.columns) for row in together])
        before = record.intact.copy()
        # If the call fails, the content of the positions it writes is unknown.
        for row in together:
            record.intact[row] = min(int(before[row]), starts[row])
        self.calls += 1
        logits = self._call_window(window, together, torch.from_numpy(ids), torch.from_numpy(positions))
        for at, row in enumerate(together):
            record.intact[row] = before[row]
            record.fed(row, starts[row], window.columns)
            if row in advancing and starts[row] <= plan.begin[row]:
                self._deliver(window, plan, row, starts[row], logits[at])

    def _starts(
        self, window: Window, plan: FeedPlan, advancing: Sequence[int], together: Sequence[int]
    ) -> dict[int, int]:
        """Position at which *window* begins in each row."""
        last = self.shape.max_length - window.columns
        starts = {}
        for row in together:
            start = int(plan.begin[row] if row in advancing else self._record.intact[row])
            if row in advancing and window.scores == "last":
                # Only the last column is scored.
                ahead = int(plan.end[row]) - window.columns
                start = min(start, ahead) if ahead >= window.first else start
            starts[row] = min(max(start, window.first), last)
        if not self.capabilities.per_row_positions:
            least = min((starts[row] for row in advancing), default=window.first)
            starts = dict.fromkeys(together, least)
        return starts

    def _deliver(self, window: Window, plan: FeedPlan, row: int, start: int, logits: Tensor) -> None:
        """Store a call's logits of *row*, if scored, and advance its plan."""
        stop = start + window.columns
        if window.scores == "every":
            plan.deliver(row, start, logits)
        elif window.scores == "last":
            plan.deliver(row, stop - 1, logits[-1:])
        end = int(plan.end[row])
        scored = window.scores == "every" or (window.scores == "last" and stop == end)
        # A last token that this call did not score is fed again by a call that does.
        plan.begin[row] = max(int(plan.begin[row]), min(stop, end if scored else end - 1))
