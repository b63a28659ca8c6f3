"""One token a row: what the loop does most of the time."""

from collections.abc import Sequence

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .burst import MAX_LENGTH, Burst
from .choose import Choose
from .history import History
from .protocols import Ending, StopCondition
from .scores import Scores
from .slots import Slots
from .statistics import Statistics
from .stop_codes import TokenCode, by_token, known_codes

Ints = NDArray[np.int64]


@attrs.define(eq=False)
class PlainStep:
    """
    A round without a draft, after another: feed each row its newest token, choose one, stop.

    What the loop's own rounds give, with less around it: there is one column, nothing is compared,
    and nothing but the newest token has to be fed as long as nobody else has used the decoder.
    """

    slots: Slots
    choose: Choose
    stop: StopCondition
    endings: tuple[Ending, ...]
    statistics: Statistics

    _follows: int = attrs.field(init=False, default=-1)
    """The slots' count of changes when the last round was over; -1 before the first."""

    _code: TokenCode | None = attrs.field(init=False)

    @_code.default
    def _code_of_the_stop(self) -> TokenCode | None:
        return by_token(self.stop)

    def follows(self) -> bool:
        """Whether the cache is as the last round has left it, so that a call will do."""
        return self._follows == self.slots.changes

    def note(self) -> None:
        """A round is over, in which every row that goes on was fed all of its tokens, and gained one."""
        self._follows = self.slots.changes

    def __call__(self, now: History, rows: Sequence[int]) -> tuple[list[Burst], Ints]:
        """
        Go on by a token.

        Args:
            now: The tokens so far, width 1. The new ones are written behind them.

            rows: Those that have not ended, ascending.

        Returns:
            Bursts of those rows, and how many tokens each of all rows gained.
        """
        phase, ids, length = self.statistics.phase, now.ids.numpy(), now.length.numpy()[:, 0]
        ends = length.tolist()
        newest = [(row, ends[row] - 1, int(ids[row, 0, ends[row] - 1])) for row in rows]
        with phase("target"):
            logits = self.slots.feed_newest(newest)
        logits = logits if len(logits) == len(ends) else logits[: len(ends)]
        self.slots.lent = True
        try:
            with phase("choose"):
                choices, scores = self.choose(logits, now)
                chosen = choices[:, 0].tolist()
            added = np.zeros_like(length)
            for row in rows:
                if chosen[row] >= 0:
                    ids[row, 0, ends[row]] = chosen[row]
                    added[row] = 1
            with phase("stop"):
                codes = self._codes(now, scores, rows, chosen, length + added)
            bursts = self._bursts(now, logits, rows, chosen, codes)
        finally:
            self.slots.lent = False
        self._count(len(ends), rows, bursts)
        return bursts, added

    def _codes(
        self, now: History, scores: Scores, rows: Sequence[int], chosen: Sequence[int], after: Ints
    ) -> Sequence[int]:
        """The stop's codes of each of *rows*; anything where no token was chosen."""
        if self._code is None:
            seen = now.at(torch.from_numpy(after[:, None]))
            codes = known_codes(self.stop(scores, seen), seen, len(self.endings))
            return codes[rows, 0].tolist()
        prompt, lengths = now.prompt.tolist(), after.tolist()
        return [self._code(chosen[row], lengths[row], prompt[row], row) for row in rows]

    def _bursts(
        self, now: History, logits: Tensor, rows: Sequence[int], chosen: Sequence[int], codes: Sequence[int]
    ) -> list[Burst]:
        bursts, last = [], now.ids.shape[-1]
        for row, code in zip(rows, codes, strict=True):
            if chosen[row] < 0:
                blamed = self.choose.emptied_by(logits, now, row, 0)
                bursts.append(Burst(row, (), Ending("no_token_left", blamed)))
            elif code:
                bursts.append(Burst(row, (chosen[row],), self.endings[code - 1]))
            else:
                full = int(now.length[row, 0]) + 1 == last
                bursts.append(Burst(row, (chosen[row],), MAX_LENGTH if full else None))
        return bursts

    def _count(self, batch: int, rows: Sequence[int], bursts: Sequence[Burst]) -> None:
        """Count a forward, and what each row gained by it."""
        statistics, columns = self.statistics, self.slots.batch_size
        statistics.forwards += 1
        statistics.columns += columns
        statistics.padding += columns - len(rows)
        for burst in bursts:
            statistics.record(len(burst.ids), 0, 0, burst.row)
