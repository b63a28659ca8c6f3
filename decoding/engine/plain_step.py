"""One token a row: what the loop does most of the time."""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cache.slots import Slots
from ..history import History
from ..optional_protocols import TokenCode
from ..protocols import Finish, StopCondition
from ..results.events import MAX_LENGTH, StepOutput
from ..results.timers import Phase, Timers
from ..sampling.few import Cell
from ..sampling.pipeline import SamplingPipeline
from ..sampling.quick_choice import on_host
from ..scores import Scores
from ..stopping.composition import by_token

Ints = NDArray[np.int64]


@attrs.define(eq=False)
class PlainStep:
    """
    A round without a draft, after another: feed each row its newest token, choose one, stop.

    What the loop's own rounds give, with less around it: there is one column, nothing is compared,
    and nothing but the newest token has to be fed as long as nobody else has used the decoder.
    """

    slots: Slots
    pipeline: SamplingPipeline
    stop: StopCondition
    finishes: tuple[Finish, ...]
    timers: Timers
    history: History
    """The run's; its ids are written to."""

    _follows: int = attrs.field(init=False, default=-1)
    """The slots' count of changes when the last round was over; -1 before the first."""

    _code: TokenCode | None = attrs.field(init=False)
    # What stays the same from step to step, as Python and numpy have it.
    _ids: Ints = attrs.field(init=False)
    _prompt: list[int] = attrs.field(init=False)
    _stream: list[int] = attrs.field(init=False)
    _scoring: Phase = attrs.field(init=False)
    _choosing: Phase = attrs.field(init=False)
    _stopping: Phase = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._code = by_token(self.stop)
        self._ids = self.history.ids.numpy()[:, 0]
        self._prompt, self._stream = self.history.prompt.tolist(), self.history.random_stream.tolist()
        phases = (self.timers.phase(name) for name in ("target", "pipeline", "stop"))
        self._scoring, self._choosing, self._stopping = phases

    def follows(self) -> bool:
        """Whether the cache is as the last round has left it, so that a call will do."""
        return self._follows == self.slots.changes

    def note(self) -> None:
        """A round is over, in which every row that goes on was fed all of its tokens, and gained one."""
        self._follows = self.slots.changes

    def __call__(self, length: Ints, rows: Sequence[int]) -> tuple[list[StepOutput], Ints]:
        """
        Go on by a token.

        Args:
            length: How many tokens each row has, ``[batch]``. The new ones are written behind them.

            rows: Those that have not ended, ascending.

        Returns:
            Bursts of those rows, and how many tokens each of all rows has then.
        """
        ids, ends = self._ids, length.tolist()
        with self._scoring:
            logits = self.slots.decode_step(
                [(row, ends[row] - 1, ids.item(row, ends[row] - 1)) for row in rows]
            )
            logits = logits if self.slots.batch_size == len(ends) else logits[: len(ends)]
        self.slots.logits_in_use = True
        try:
            with self._choosing:
                chosen, scores = self._pipeline(logits, length, ends, rows)
            # Not in place: a part may keep what it was shown.
            after = length.copy()
            for row, token in zip(rows, chosen, strict=True):
                if token >= 0:
                    ids[row, ends[row]] = token
                    after[row] += 1
            with self._stopping:
                codes = self._codes(scores, rows, chosen, after)
            outputs = []
            for row, token, code in zip(rows, chosen, codes, strict=True):
                if token < 0:
                    emptied_by = self.pipeline.emptied_by(logits, self._seen(length), row, 0)
                    finish: Finish | None = Finish("no_token_left", emptied_by)
                elif code:
                    finish = self.finishes[code - 1]
                else:
                    finish = MAX_LENGTH if ends[row] + 1 == ids.shape[1] else None
                outputs.append(StepOutput(row, () if token < 0 else (token,), finish))
        finally:
            self.slots.logits_in_use = False
        self._count(outputs)
        return outputs, after

    def _pipeline(
        self, logits: Tensor, length: Ints, ends: Sequence[int], rows: Sequence[int]
    ) -> tuple[list[int], Scores]:
        """A token of each of *rows*, -1 where there is none, and the processed logits."""
        quick, scores = self.pipeline.quick, on_host(logits)
        if quick is not None and scores is not None:
            ids, prompt, stream, vocab = self._ids, self._prompt, self._stream, scores.shape[-1]
            chosen: list[int] = []
            left: dict[tuple[int, int], Any] = {}
            for row in rows:
                cell = Cell(ids[row, : ends[row]], prompt[row], stream[row], vocab)
                found = quick.of_cell(scores[row, 0], cell)
                if found is None:
                    break
                token, left[row, 0] = found
                chosen.append(token)
            else:
                return chosen, quick.scores(logits, left)
        choices, processed = self.pipeline.at_length(logits, self._seen(length))
        every = choices[:, 0].tolist()
        return [every[row] for row in rows], processed

    def _seen(self, length: Ints) -> History:
        """The run's texts, seen from behind *length* tokens of each row."""
        return self.history.at(torch.from_numpy(length[:, None]))

    def _codes(
        self, scores: Scores, rows: Sequence[int], chosen: Sequence[int], after: Ints
    ) -> Sequence[int]:
        """The stop's codes of each of *rows*; anything where no token was chosen."""
        if self._code is None:
            seen = self._seen(after)
            codes: list[int] = known_codes(self.stop(scores, seen), seen, len(self.finishes))[
                rows, 0
            ].tolist()
            return codes
        code, prompt, lengths = self._code, self._prompt, after.tolist()
        return [code(token, lengths[row], prompt[row], row) for row, token in zip(rows, chosen, strict=True)]

    def _count(self, outputs: Sequence[StepOutput]) -> None:
        """Count a forward, and what each row gained by it."""
        statistics, columns = self.timers.statistics, self.slots.batch_size
        statistics.forwards += 1
        statistics.columns += columns
        statistics.padding += columns - len(outputs)
        for output in outputs:
            statistics.record(len(output.ids), 0, 0, output.row)


def known_codes(codes: Tensor, after: History, finishes: int) -> NDArray[np.int64]:
    """
    *codes*, if they are those of a stop condition with so many *finishes*.

    Raises:
        ValueError: They are not: of another shape than the columns *after* which it was asked, or unknown.
    """
    shape = after.length.shape
    if isinstance(codes, Tensor) and codes.shape == shape:
        known: NDArray[np.int64] = codes.numpy(force=True)
        if ((known >= 0) & (known <= finishes)).all():
            return known
    raise ValueError(
        f"'stop' must give codes 0 to {finishes}, one for each ending, of the shape {list(shape)}: "
        f"got {codes!r}"
    )
