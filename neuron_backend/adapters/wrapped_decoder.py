"""One forward of the protocol as calls of a system that others compiled."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ...decoding.cache.slots import Slots
from ...decoding.checks import check_inputs
from ...decoding.protocols import DecoderShape
from .capabilities import Capabilities, Prefill, Window
from .feed_plan import FeedPlan
from .record import Ints, Record

_ENCODING = 16
"""As how many calls of a window the encoding of a prompt is taken to cost: it computes far more."""


class WrappedDecoder(ABC):
    """
    A decoder over the programs of another system.

    The protocol lets every row of a forward do something else; such a system has one program for
    prompts, one for a token, perhaps one for several, takes all rows through one of them, and
    writes all of them. So a forward becomes one call or several, in which

    - tokens at position 0 never share a call with others where the system would take all rows
      for prompts;
    - a window covers consecutive positions, never one twice: of two columns at one position the
      later sees the earlier, and which of their keys and values is kept nobody knows. Behind a
      row's tokens come those that stand there, or any where none do;
    - a row that is idle is fed where nothing of it stands; a row that is full, its own last tokens;
    - what a prompt's bucket wipes out behind it is fed again before anything looks at it.

    How many calls a forward takes depends on what stands where; what it gives does not, up to the
    rounding by which the system's programs differ.

    Nobody else may feed the system meanwhile: call :meth:`reset` after that.
    """

    capabilities: Capabilities
    """The programs, and what they can do."""

    shape: DecoderShape
    """What :meth:`forward` takes and gives."""

    calls: int
    """Calls of the system so far."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.shape = capabilities.shape
        self.calls = 0
        self._record = Record(capabilities.batch_size, capabilities.max_length)

    @property
    def limits(self) -> tuple[str, ...]:
        """What it cannot do that a decoder compiled here can, in words."""
        return self.capabilities.limits

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """
        Write *ids* into the cache and score what may follow them.

        Args:
            ids: Tokens to feed, ``[batch, width]`` int64, *width* one of ``shape.widths``; -1 is
                padding, anywhere in a row.

            cache_pos: Position of the first column of each row, ``[batch]`` int64.

        Returns:
            Logits ``[batch, width, vocab]`` float32, or ``[batch, 1, vocab]`` of the last column
            when *width* exceeds ``shape.scored_width``.

        Raises:
            ValueError: A wrong width, batch, id or position. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        check_inputs(ids, cache_pos, self.shape)
        tokens, start, width = ids.numpy(), cache_pos.numpy(), ids.shape[1]
        scored = width <= self.shape.scored_width
        lost, begin, end = self._record.enter(tokens, start)
        plan = FeedPlan.of(tokens, start, begin if scored else lost, end, scored, self.shape.vocab_size)
        with torch.no_grad():
            if not plan.pending.any():
                # It changes nothing, but who times a forward of padding is to see what a forward takes.
                self._feed(self._window_for(width), plan)
            elif scored:
                self._catch_up(FeedPlan.again(lost, begin))
                self._feed_all(plan, width)
            else:
                self._catch_up(plan)
        return plan.logits

    def reset(self) -> None:
        """Take nothing as fed: after somebody else has fed the system."""
        self._record = Record(self.shape.batch_size, self.shape.max_length)
        Slots.of(self).forget()

    def advise_width(self, columns: int) -> str:
        """What to do to have so many *columns* scored, as a sentence."""
        return f"Compile the wrapped system with a program that scores {columns}"

    @abstractmethod
    def _call_window(self, window: Window, rows: Sequence[int], ids: Tensor, positions: Tensor) -> Tensor:
        """
        Call the program of *window*.

        Args:
            window: One of :attr:`capabilities`'.

            rows: The rows fed: all of them, or one if the window takes one.

            ids: ``[rows, columns]`` int64.

            positions: ``[rows, columns]`` int64, consecutive in each row.

        Returns:
            Logits ``[rows, columns, vocab]``, or ``[rows, 1, vocab]`` of the last column. Not looked
            at if the window scores none.
        """

    @abstractmethod
    def _call_prefill(self, prefill: Prefill, rows: Sequence[int], tokens: Sequence[Ints]) -> Tensor:
        """
        Call the program of *prefill*.

        Args:
            prefill: :attr:`capabilities`'.

            rows: The rows encoded: all of them, or one if it takes one.

            tokens: The ids of each from position 0 on, at least one of each.

        Returns:
            Logits ``[rows, vocab]`` after each row's last token, or after that of the longest rows.
        """

    def _catch_up(self, plan: FeedPlan) -> None:
        """Feed what is pending by few calls, through whatever program."""
        self._encode_prompts(plan)
        self._feed_all(plan, None)

    def _feed_all(self, plan: FeedPlan, width: int | None) -> None:
        """Feed through windows what is pending: all of it through that of *width*, or by few calls."""
        while (pending := plan.pending).any():
            window = self._window_for(int(pending.max()) if width is None else width, width is not None)
            early = np.flatnonzero((pending > 0) & (plan.begin < window.first))
            if len(early):
                self._lead(plan, early.tolist())
            else:
                self._feed(window, plan)

    def _window_for(self, columns: int, scored: bool = False) -> Window:
        """The smallest window of so many columns, all of them scored on demand; else the widest there is."""
        windows = self.capabilities.scoring if scored else self.capabilities.windows
        return next((window for window in windows if window.columns >= columns), windows[-1])

    def _lead(self, plan: FeedPlan, rows: list[int]) -> None:
        """Feed the token at position 0 of each of *rows*, and nothing else."""
        single = self.capabilities.windows[0]
        if single.first == 0:
            self._feed(single, plan, rows)
        else:
            self._prefill(plan, rows, 1)

    def _encode_prompts(self, plan: FeedPlan) -> None:
        """Take prompts through their program, and what is sooner encoded anew than fed by windows."""
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
            and -(-pending[row] // widest) > _ENCODING * len(rows)
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
            # What is too short for it, windows take.
            if min(int(plan.end[row]), most) >= prefill.least:
                self._prefill_together(prefill, plan, [row], most)

    def _prefill_together(self, prefill: Prefill, plan: FeedPlan, rows: list[int], most: int) -> None:
        """One call: *rows* up to *most* of their tokens, and the others as they are if they have to come."""
        record, together = self._record, rows if prefill.one_row else list(range(self.shape.batch_size))
        tokens = [
            record.prefix(row, min(int(plan.end[row]), most) if row in rows else prefill.columns)
            for row in together
        ]
        longest = max(map(len, tokens))
        before = record.intact[together]
        # If the call fails, nobody knows what they hold.
        record.intact[together] = 0
        self.calls += 1
        logits = self._call_prefill(prefill, together, tokens)
        for at, row in enumerate(together):
            count = len(tokens[at])
            record.fed(row, 0, count)
            if count == prefill.columns:
                # What lies behind was not touched.
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
        going = self._going(window, plan) if rows is None else rows
        if not window.one_row:
            self._feed_together(window, plan, going, range(self.shape.batch_size))
            return
        for row in going:
            self._feed_together(window, plan, [row], [row])

    def _going(self, window: Window, plan: FeedPlan) -> list[int]:
        """The rows that *window* gets any further."""
        pending = plan.pending
        if window.scores == "every":
            return np.flatnonzero(pending > 0).tolist()
        going = pending > 1
        if window.scores == "last" and self.capabilities.per_row_positions:
            # One that has come far enough ends in the last column, with its logits.
            going |= (pending > 0) & (plan.end >= window.first + window.columns)
        return np.flatnonzero(going).tolist()

    def _feed_together(
        self, window: Window, plan: FeedPlan, going: Sequence[int], together: Sequence[int]
    ) -> None:
        """One call of *window* over the rows *together*, of which those *going* make progress."""
        record = self._record
        starts = self._starts(window, plan, going, together)
        ids = np.stack([record.window(row, starts[row], window.columns) for row in together])
        positions = np.stack([starts[row] + np.arange(window.columns) for row in together])
        before = record.intact.copy()
        # If the call fails, what it was to write is in doubt.
        for row in together:
            record.intact[row] = min(int(before[row]), starts[row])
        self.calls += 1
        logits = self._call_window(window, together, torch.from_numpy(ids), torch.from_numpy(positions))
        for at, row in enumerate(together):
            record.intact[row] = before[row]
            record.fed(row, starts[row], window.columns)
            if row in going and starts[row] <= plan.begin[row]:
                self._take(window, plan, row, starts[row], logits[at])

    def _starts(
        self, window: Window, plan: FeedPlan, going: Sequence[int], together: Sequence[int]
    ) -> dict[int, int]:
        """Where *window* begins in each row."""
        last = self.shape.max_length - window.columns
        starts = {}
        for row in together:
            start = int(plan.begin[row] if row in going else self._record.intact[row])
            if row in going and window.scores == "last":
                # Its last column is the one that counts.
                ahead = int(plan.end[row]) - window.columns
                start = min(start, ahead) if ahead >= window.first else start
            starts[row] = min(max(start, window.first), last)
        if not self.capabilities.per_row_positions:
            least = min((starts[row] for row in going), default=window.first)
            starts = dict.fromkeys(together, least)
        return starts

    def _take(self, window: Window, plan: FeedPlan, row: int, start: int, logits: Tensor) -> None:
        """What a call gave to *row*: logits, if any, and progress."""
        stop = start + window.columns
        if window.scores == "every":
            plan.deliver(row, start, logits)
        elif window.scores == "last":
            plan.deliver(row, stop - 1, logits[-1:])
        end = int(plan.end[row])
        scored = window.scores == "every" or (window.scores == "last" and stop == end)
        # A last token whose logits this call did not give is fed once more, by one that does.
        plan.begin[row] = max(int(plan.begin[row]), min(stop, end if scored else end - 1))
