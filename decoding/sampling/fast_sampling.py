"""Choosing from a few tokens, without a tensor of all of them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from ..history import History
from ..optional_protocols import offers_short_cuts
from ..protocols import Processor, Sampler
from ..scores import Scores
from .few import Cell, DrawFromFew, DrawsFromFew, Few, Floats, Narrows, OfFew, Pointwise
from .greedy import Greedy

_STAGES = 8
"""More might overflow, though none alone would."""


@attrs.frozen(eq=False)
class FastSampling:
    """
    A chain that comes down to a few tokens, and a sampler that draws from those.

    Column by column, with numpy on arrays of a few dozen numbers. The result is that of every stage on
    all of the vocabulary: where a part finds that it cannot know, there is none, and the long way is gone.
    """

    before: tuple[Any, ...]
    """Stages before the one that narrows, :class:`~.few.Pointwise`."""

    narrows: Any
    """The one that :class:`~.few.Narrows`."""

    after: tuple[Any, ...]
    """Stages after it: as those before, but for ``at_most``."""

    draw: DrawFromFew
    """What the sampler draws with from those that are left."""

    def of_cell(self, logits: Floats, cell: Cell) -> tuple[int, Few] | None:
        """The choice in one column, of raw logits ``[vocab]``, and what is left; None as in a call."""
        few: Few | None = self.narrows.to_few(logits, self.before, cell)
        for stage in self.after:
            if few is None:
                return None
            few = stage.of_few(few, cell)
        token = None if few is None else self.draw(few, cell)
        return None if few is None or token is None else (token, few)

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Scores] | None:
        """Ids and scores from raw logits ``[batch, width, vocab]``; None if only the general path applies."""
        scores = on_host(logits)
        if scores is None:
            return None
        ids, lengths = history.ids.numpy(), history.length.tolist()
        prompts, random_streams = history.prompt.tolist(), history.random_stream.tolist()
        batch, width, vocab = scores.shape
        sampled, one_path = np.empty((batch, width), dtype=np.int64), ids.shape[1] == 1
        left: dict[tuple[int, int], Few] = {}
        for row, column in np.ndindex(batch, width):
            tokens = ids[row, 0 if one_path else column, : lengths[row][column]]
            found = self.of_cell(scores[row, column], Cell(tokens, prompts[row], random_streams[row], vocab))
            if found is None:
                return None
            sampled[row, column], left[row, column] = found
        return torch.from_numpy(sampled), self.scores(logits, left)

    def scores(self, logits: Tensor, left: Mapping[tuple[int, int], Any]) -> Scores:
        """The processed *logits*, given what is *left* in some columns, by row and column."""
        return Scores(lambda: _dense(left, logits.shape))


@attrs.frozen(eq=False)
class FastGreedy:
    """The likeliest token of the raw logits."""

    def of_cell(self, logits: Floats, cell: Cell) -> tuple[int, None]:
        """As :class:`FastSampling`; the id is -1 where there is none."""
        best = int(logits.argmax())
        # A comparison with NaN is false as well, so garbage is never taken for a choice.
        return best if logits.item(best) > -math.inf else -1, None

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Scores] | None:
        """As :class:`FastSampling`; the id is -1 where there is none."""
        scores = on_host(logits)
        if scores is None:
            return None
        batch, width, _ = scores.shape
        sampled = scores.argmax(axis=-1)
        for row in range(batch):
            for column in range(width):
                if not scores.item(row, column, sampled.item(row, column)) > -math.inf:
                    sampled[row, column] = -1
        return torch.from_numpy(sampled), self.scores(logits, {})

    def scores(self, logits: Tensor, left: Mapping[tuple[int, int], Any]) -> Scores:
        """The *logits* as they are."""
        return Scores(lambda: logits)


def on_host(logits: Tensor) -> Floats | None:
    """*logits* as they are quickly sampled from; None where they are elsewhere or otherwise."""
    if logits.is_cpu and logits.dtype is torch.float32 and not logits.requires_grad:
        scores: Floats = logits.numpy()
        return scores
    return None


def _dense(left: Mapping[tuple[int, int], Few], shape: Sequence[int]) -> Tensor:
    """Logits of all of the vocabulary, ``-inf`` but for what is *left* in each column."""
    whole = np.full(shape, -np.inf, dtype=np.float32)
    for cell, few in left.items():
        ids, scores = few.arrays()
        whole[cell][ids] = scores
    return torch.from_numpy(whole)


FastSampler = FastSampling | FastGreedy


def fast_sampler(stages: Sequence[Processor], sampler: Sampler) -> FastSampler | None:
    """The quick way to choose as *stages* and *sampler* do; None if there is none."""
    if not stages and type(sampler) is Greedy:
        return FastGreedy()
    if not (offers_short_cuts(sampler) and isinstance(sampler, DrawsFromFew)):
        return None
    for index, stage in enumerate(stages):
        if isinstance(stage, Narrows) and _takes_few(stage):
            before, after = stages[:index], stages[index + 1 :]
            bounded = all(isinstance(one, Pointwise) for one in before)
            if all(map(_takes_few, stages)) and bounded and len(stages) <= _STAGES:
                return FastSampling(tuple(before), stage, tuple(after), sampler.from_few())
            return None
    return None


def _takes_few(stage: Processor) -> bool:
    """Whether *stage* runs on few tokens, and has parameters for that."""
    return offers_short_cuts(stage) and isinstance(stage, OfFew) and stage.takes_few
