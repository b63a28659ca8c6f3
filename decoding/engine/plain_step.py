"""The plain decoding step: one token per row."""

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
from ..sampling.fast_sampling import on_host
from ..sampling.few_tokens import Cell
from ..sampling.pipeline import SamplingPipeline
from ..scores import Scores
from ..stopping.composition import by_token

Ints = NDArray[np.int64]


@attrs.define(eq=False)
class PlainStep:
    """
    A step without a draft: feed each row its newest token, sample the next one, check the stop.

    Equivalent to the loop's general step with less overhead: there is one column and nothing to
    verify, and only the newest token must be fed as long as no other user changed the cache.
    """

    slots: Slots
    pipeline: SamplingPipeline
    stop: StopCondition
    finishes: tuple[Finish, ...]
    timers: Timers
    history: History
    """The run's history; its ids are written to."""

    _follows: int = attrs.field(init=False, default=-1)
    """The slots' count of changes after the last step; -1 before the first."""

    _code: TokenCode | None = attrs.field(init=False)
    # Constants of the run as Python and numpy objects.
    _ids: Ints = attrs.field(init=False)
    _prompt: list[int] = attrs.field(init=False)
    _random_streams: list[int] = attrs.field(init=False)
    _scoring: Phase = attrs.field(init=False)
    _sampling: Phase = attrs.field(init=False)
    _stopping: Phase = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._code = by_token(self.stop)
        self._ids = self.history.ids.numpy()[:, 0]
        self._prompt = self.history.prompt.tolist()
        self._random_streams = self.history.random_stream.tolist()
        phases = (self.timers.phase(name) for name in ("target", "sample", "stop"))
        self._scoring, self._sampling, self._stopping = phases

    def follows(self) -> bool:
        """Whether the cache is unchanged since the last step, so that a call is valid."""
        return self._follows == self.slots.changes

    def note(self) -> None:
        """Note the end of a step that fed all tokens of every active row and added one to each."""
        self._follows = self.slots.changes

    def __call__(self, length: Ints, rows: Sequence[int]) -> tuple[list[StepOutput], Ints]:
        """
        Add one token to each active row.

        Args:
            length: Tokens of each row, ``[batch]``. The new ones are written after them.

            rows: The rows that have not ended, ascending.

        Returns:
            The outputs of these rows, and the new length of every row.
        """
        ids, ends = self._ids, length.tolist()
        with self._scoring:
            logits = self.slots.decode_step(
                [(row, ends[row] - 1, ids.item(row, ends[row] - 1)) for row in rows]
            )
            logits = logits if self.slots.batch_size == len(ends) else logits[: len(ends)]
        self.slots.logits_in_use = True
        try:
            with self._sampling:
                sampled, scores = self._sample(logits, length, ends, rows)
            # Not in place: a part may keep a reference.
            after = length.copy()
            for row, token in zip(rows, sampled, strict=True):
                if token >= 0:
                    ids[row, ends[row]] = token
                    after[row] += 1
            with self._stopping:
                codes = self._codes(scores, rows, sampled, after)
            outputs = []
            for row, token, code in zip(rows, sampled, codes, strict=True):
                if token < 0:
                    seen = self._seen(length)
                    finish: Finish | None = self.pipeline.finish_without_token(logits, seen, row, 0)
                elif code:
                    finish = self.finishes[code - 1]
                else:
                    finish = MAX_LENGTH if ends[row] + 1 == ids.shape[1] else None
                outputs.append(StepOutput(row, () if token < 0 else (token,), finish))
        finally:
            self.slots.logits_in_use = False
        self._count(outputs)
        return outputs, after

    def _sample(
        self, logits: Tensor, length: Ints, ends: Sequence[int], rows: Sequence[int]
    ) -> tuple[list[int], Scores]:
        """A token for each of *rows*, -1 where none is possible, and the processed logits."""
        fast, scores = self.pipeline.fast, on_host(logits)
        if fast is not None and scores is not None:
            ids, prompt, vocab = self._ids, self._prompt, scores.shape[-1]
            sampled: list[int] = []
            left: dict[tuple[int, int], Any] = {}
            for row in rows:
                cell = Cell(ids[row, : ends[row]], prompt[row], self._random_streams[row], vocab)
                found = fast.of_cell(scores[row, 0], cell)
                if found is None:
                    break
                token, left[row, 0] = found
                sampled.append(token)
            else:
                return sampled, fast.scores(logits, left)
        tokens, processed = self.pipeline.run_stages(logits, self._seen(length))
        every = tokens[:, 0].tolist()
        return [every[row] for row in rows], processed

    def _seen(self, length: Ints) -> History:
        """The run's history at *length* tokens of each row."""
        return self.history.at(torch.from_numpy(length[:, None]))

    def _codes(
        self, scores: Scores, rows: Sequence[int], sampled: Sequence[int], after: Ints
    ) -> Sequence[int]:
        """The stop codes of *rows*; undefined where no token was sampled."""
        if self._code is None:
            seen = self._seen(after)
            codes: list[int] = known_codes(self.stop(scores, seen), seen, len(self.finishes))[
                rows, 0
            ].tolist()
            return codes
        code, prompt, lengths = self._code, self._prompt, after.tolist()
        return [code(token, lengths[row], prompt[row], row) for row, token in zip(rows, sampled, strict=True)]

    def _count(self, outputs: Sequence[StepOutput]) -> None:
        """Count a forward and each row's new token."""
        statistics, columns = self.timers.statistics, self.slots.batch_size
        statistics.forwards += 1
        statistics.columns += columns
        statistics.padding += columns - len(outputs)
        for output in outputs:
            statistics.record(len(output.ids), 0, 0, output.row)


def known_codes(codes: Tensor, after: History, finishes: int) -> NDArray[np.int64]:
    """
    *codes* as an array, checked for a stop condition with so many *finishes*.

    Raises:
        ValueError: The shape is not that of *after*, or a code is unknown.
    """
    shape = after.length.shape
    if isinstance(codes, Tensor) and codes.shape == shape:
        known: NDArray[np.int64] = codes.numpy(force=True)
        if ((known >= 0) & (known <= finishes)).all():
            return known
    raise ValueError(
        f"'stop' must give codes 0 to {finishes}, one for each finish, of the shape {list(shape)}: "
        f"got {codes!r}"
    )
