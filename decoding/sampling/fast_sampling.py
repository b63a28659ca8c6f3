"""Fast path: sampling from a few tokens without a tensor of the whole vocabulary."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from ..history import History
from ..scores import Scores
from .few_tokens import Cell, Few, Floats
from .greedy import Greedy
from .resolved_sampler import ResolvedSampler
from .short_cuts import DrawFromFew, DrawsFromFew, Narrows, OfFew, Pointwise

_STAGES = 8
"""Limit on the stages: more might overflow together, though none does alone."""


@attrs.frozen(eq=False)
class FastSampling:
    """
    A chain that leaves a few tokens, and a sampler that samples from those.

    Works column by column with numpy on a few dozen numbers. The result is that of running every stage
    on the whole vocabulary; where a part cannot guarantee that, it is None and the general path runs.
    """

    before: tuple[Pointwise, ...]
    """Short cuts of the stages before the one that narrows."""

    narrows: Narrows
    """Short cuts of the stage that narrows."""

    after: tuple[OfFew, ...]
    """Short cuts of the stages after it."""

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

    def __call__(
        self, logits: Tensor, history: History, rows: Sequence[int] | None = None
    ) -> tuple[Tensor, Scores] | None:
        """As :class:`~.pipeline.SamplingPipeline`; None if only the general path applies."""
        scores = on_host(logits)
        if scores is None:
            return None
        ids, lengths = history.ids.numpy(), history.length.tolist()
        prompts, random_streams = history.prompt.tolist(), history.random_stream.tolist()
        (batch, width, vocab), one_path = scores.shape, ids.shape[1] == 1
        # Not np.full(), which takes longer.
        sampled, left = np.empty((batch, width), dtype=np.int64), {}
        sampled.fill(-1)
        for row in range(batch) if rows is None else rows:
            for column in range(width):
                tokens = ids[row, 0 if one_path else column, : lengths[row][column]]
                cell = Cell(tokens, prompts[row], random_streams[row], vocab)
                found = self.of_cell(scores[row, column], cell)
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

    def __call__(
        self, logits: Tensor, history: History, rows: Sequence[int] | None = None
    ) -> tuple[Tensor, Scores] | None:
        """As :class:`FastSampling`; the history is not read."""
        scores = on_host(logits)
        if scores is None:
            return None
        batch, width, _ = scores.shape
        sampled = np.empty((batch, width), dtype=np.int64)
        sampled.fill(-1)
        for row in range(batch) if rows is None else rows:
            for column in range(width):
                of_column = scores[row, column]
                best = int(of_column.argmax())
                # Comparisons with NaN are false, so NaN never yields a token.
                if of_column.item(best) > -math.inf:
                    sampled[row, column] = best
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


def fast_sampler(cuts: Sequence[object], sampler: ResolvedSampler) -> FastSampler | None:
    """The fast path, given the short cuts of each stage (None without any); None if there is none."""
    if not cuts and type(sampler.sampler) is Greedy:
        return FastGreedy()
    if not isinstance(sampler.cuts, DrawsFromFew) or len(cuts) > _STAGES:
        return None
    few = [cut for cut in cuts if isinstance(cut, OfFew) and cut.takes_few]
    for place, cut in enumerate(few):
        if isinstance(cut, Narrows):
            before = [one for one in few[:place] if isinstance(one, Pointwise)]
            if len(few) < len(cuts) or len(before) < place:
                return None
            return FastSampling(tuple(before), cut, tuple(few[place + 1 :]), sampler.cuts.from_few())
    return None
