"""Fast path: sampling from a few tokens without a tensor of the whole vocabulary."""

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
from .few_tokens import Cell, DrawFromFew, DrawsFromFew, Few, Floats, Narrows, OfFew, Pointwise
from .greedy import Greedy

_STAGES = 8
"""Limit on the stages: more might overflow together, though none does alone."""


@attrs.frozen(eq=False)
class FastSampling:
    """
    A chain that leaves a few tokens, and a sampler that samples from those.

    Works column by column with numpy on a few dozen numbers. The result is that of running every stage
    on the whole vocabulary; where a part cannot guarantee that, it is None and the general path runs.
    """

    before: tuple[Any, ...]
    """Stages before the one that narrows, :class:`~.few_tokens.Pointwise`."""

    narrows: Any
    """The stage that :class:`~.few_tokens.Narrows`."""

    after: tuple[Any, ...]
    """Stages after it, :class:`~.few_tokens.OfFew`."""

    draw: DrawFromFew
    """The sampler's short cut for the remaining tokens."""

    def of_cell(self, logits: Floats, cell: Cell) -> tuple[int, Few] | None:
        """The token of one column of raw logits ``[vocab]``, and the remaining tokens; None as in a call."""
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
        """The processed *logits*, given the remaining tokens *left* by row and column."""
        return Scores(lambda: _dense(left, logits.shape))


@attrs.frozen(eq=False)
class FastGreedy:
    """The argmax of the raw logits."""

    def of_cell(self, logits: Floats, cell: Cell) -> tuple[int, None]:
        """As :class:`FastSampling`; the id is -1 if no token is possible."""
        best = int(logits.argmax())
        # Comparisons with NaN are false, so NaN never yields a token.
        return best if logits.item(best) > -math.inf else -1, None

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Scores] | None:
        """As :class:`FastSampling`; the id is -1 if no token is possible."""
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
        """The *logits* unchanged."""
        return Scores(lambda: logits)


def on_host(logits: Tensor) -> Floats | None:
    """*logits* as a float32 numpy array; None if they are on a device, of another dtype or need gradients."""
    if logits.is_cpu and logits.dtype is torch.float32 and not logits.requires_grad:
        scores: Floats = logits.numpy()
        return scores
    return None


def _dense(left: Mapping[tuple[int, int], Few], shape: Sequence[int]) -> Tensor:
    """Logits of the whole vocabulary, ``-inf`` except for the tokens *left* in each column."""
    whole = np.full(shape, -np.inf, dtype=np.float32)
    for cell, few in left.items():
        ids, scores = few.arrays()
        whole[cell][ids] = scores
    return torch.from_numpy(whole)


FastSampler = FastSampling | FastGreedy


def fast_sampler(stages: Sequence[Processor], sampler: Sampler) -> FastSampler | None:
    """The fast path for *stages* and *sampler*; None if there is none."""
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
    """Whether *stage* has the short cut for few tokens and its parameters allow it."""
    return offers_short_cuts(stage) and isinstance(stage, OfFew) and stage.takes_few
