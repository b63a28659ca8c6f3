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
from .short_cuts import DrawFromFew, Narrows, OfFew, Pointwise


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
        self,
        logits: Tensor,
        history: History,
        rows: Sequence[int] | None = None,
        columns: Sequence[int] | None = None,
    ) -> tuple[Tensor, Scores] | None:
        """As :class:`~.pipeline.SamplingPipeline`; None if only the general path applies."""
        if not is_on_host(logits):
            return None
        scores: Floats = logits.numpy()
        ids, lengths = history.ids.numpy(), history.length.tolist()
        prompts, random_streams = history.prompt.tolist(), history.random_stream.tolist()
        (batch, width, vocab), one_path = scores.shape, ids.shape[1] == 1
        # Not np.full(), which takes longer.
        sampled, left = np.empty((batch, width), dtype=np.int64), {}
        sampled.fill(-1)
        for row in range(batch) if rows is None else rows:
            last = width if columns is None else columns[row]
            for column in range(last):
                tokens = ids[row, 0 if one_path else column, : lengths[row][column]]
                cell = Cell(tokens, prompts[row], random_streams[row], vocab)
                found = self.of_cell(scores[row, column], cell)
                if found is None:
                    return None
                sampled[row, column], left[row, column] = found
            for column in range(last, width):
                sampled[row, column], left[row, column] = sampled[row, last - 1], left[row, last - 1]
        return torch.from_numpy(sampled), self.scores(logits, left)

    def scores(self, logits: Tensor, left: Mapping[tuple[int, int], Any]) -> Scores:
        """The processed *logits*, given the remaining tokens *left* by row and column."""
        return Scores(lambda: dense(left, logits.shape))


@attrs.frozen(eq=False)
class FastGreedy:
    """The argmax of the raw logits."""

    def __call__(
        self,
        logits: Tensor,
        history: History,
        rows: Sequence[int] | None = None,
        columns: Sequence[int] | None = None,
    ) -> tuple[Tensor, Scores] | None:
        """As :class:`FastSampling`; the history is not read."""
        if not is_on_host(logits):
            return None
        scores: Floats = logits.numpy()
        batch, width, _ = scores.shape
        sampled = np.empty((batch, width), dtype=np.int64)
        sampled.fill(-1)
        for row in range(batch) if rows is None else rows:
            last = width if columns is None else columns[row]
            for column in range(last):
                of_column = scores[row, column]
                best = int(of_column.argmax())
                # Comparisons with NaN are false, so NaN never yields a token.
                if of_column.item(best) > -math.inf:
                    sampled[row, column] = best
            sampled[row, last:] = sampled[row, last - 1]
        return torch.from_numpy(sampled), self.scores(logits, {})

    def scores(self, logits: Tensor, left: Mapping[tuple[int, int], Any]) -> Scores:
        """The *logits* unchanged."""
        return Scores(lambda: logits)


def is_on_host(logits: Tensor) -> bool:
    """Whether *logits* are float32 on the host and need no gradients."""
    return logits.is_cpu and logits.dtype is torch.float32 and not logits.requires_grad


def dense(left: Mapping[tuple[int, int], Few], shape: Sequence[int]) -> Tensor:
    """Logits of the whole vocabulary, ``-inf`` except for the tokens *left* in each column."""
    whole = np.full(shape, -np.inf, dtype=np.float32)
    for cell, few in left.items():
        ids, scores = few.arrays()
        whole[cell][ids] = scores
    return torch.from_numpy(whole)
