"""One token a row: what the loop does most of the time."""

from collections.abc import Sequence

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

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
    history: History
    """The run's; its ids are written to."""

    _follows: int = attrs.field(init=False, default=-1)
    """The slots' count of changes when the last round was over; -1 before the first."""

    _code: TokenCode | None = attrs.field(init=False)
    # What stays the same from step to step, as Python and numpy have it.
    _ids: Ints = attrs.field(init=False)
    _prompt: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._code = by_token(self.stop)
        self._ids, self._prompt = self.history.ids.numpy()[:, 0], self.history.prompt.tolist()

    def follows(self) -> bool:
        """Whether the cache is as the last round has left it, so that a call will do."""
        return self._follows == self.slots.changes

    def note(self) -> None:
        """A round is over, in which every row that goes on was fed all of its tokens, and gained one."""
        self._follows = self.slots.changes

    def __call__(self, length: Ints, rows: Sequence[int]) -> tuple[list[Burst], Ints]:
        """
        Go on by a token.

        Args:
            length: How many tokens each row has, ``[batch]``. The new ones are written behind them.

            rows: Those that have not ended, ascending.

        Returns:
            Bursts of those rows, and how many tokens each of all rows has then.
        """
        phase, ids, ends = self.statistics.phase, self._ids, length.tolist()
        now = self.history.at(torch.from_numpy(length[:, None]))
        with phase("target"):
            logits = self.slots.feed_newest(
                [(row, ends[row] - 1, ids.item(row, ends[row] - 1)) for row in rows]
            )
            logits = logits if len(logits) == len(ends) else logits[: len(ends)]
        self.slots.lent = True
        try:
            with phase("choose"):
                choices, scores = self.choose(logits, now)
                chosen = choices[:, 0].tolist()
            # Not in place: a part may keep what it was shown.
            after = length.copy()
            for row in rows:
                if chosen[row] >= 0:
                    ids[row, ends[row]] = chosen[row]
                    after[row] += 1
            with phase("stop"):
                codes = self._codes(scores, rows, chosen, after)
            bursts = []
            for row, code in zip(rows, codes, strict=True):
                if chosen[row] < 0:
                    ending: Ending | None = Ending(
                        "no_token_left", self.choose.emptied_by(logits, now, row, 0)
                    )
                elif code:
                    ending = self.endings[code - 1]
                else:
                    ending = MAX_LENGTH if ends[row] + 1 == ids.shape[1] else None
                bursts.append(Burst(row, () if chosen[row] < 0 else (chosen[row],), ending))
        finally:
            self.slots.lent = False
        self._count(bursts)
        return bursts, after

    def _codes(
        self, scores: Scores, rows: Sequence[int], chosen: Sequence[int], after: Ints
    ) -> Sequence[int]:
        """The stop's codes of each of *rows*; anything where no token was chosen."""
        if self._code is None:
            seen = self.history.at(torch.from_numpy(after[:, None]))
            codes: list[int] = known_codes(self.stop(scores, seen), seen, len(self.endings))[rows, 0].tolist()
            return codes
        code, prompt, lengths = self._code, self._prompt, after.tolist()
        return [code(chosen[row], lengths[row], prompt[row], row) for row in rows]

    def _count(self, bursts: Sequence[Burst]) -> None:
        """Count a forward, and what each row gained by it."""
        statistics, columns = self.statistics, self.slots.batch_size
        statistics.forwards += 1
        statistics.columns += columns
        statistics.padding += columns - len(bursts)
        for burst in bursts:
            statistics.record(len(burst.ids), 0, 0, burst.row)
