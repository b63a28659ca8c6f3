"""Choosing from a few tokens, without a tensor of all of them."""

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from .few import Cell, Floats
from .greedy import Greedy
from .history import History
from .offered import offered
from .protocols import Processor, Selection

_STAGES = 8
"""More might overflow, though none alone would."""


@attrs.frozen(eq=False)
class QuickChoice:
    """
    A chain that comes down to a few tokens, and a selection that draws from those.

    Column by column, with numpy on arrays of a few dozen numbers. The result is that of every stage on
    all of the vocabulary: where a part finds that it cannot know, there is none, and the long way is gone.
    """

    before: tuple[Any, ...]
    """Stages before the one that narrows, :class:`~.few.Pointwise`."""

    narrows: Any
    """The one that :class:`~.few.Narrows`."""

    after: tuple[Any, ...]
    """Stages after it: as those before, but for ``at_most``."""

    selection: Any
    """That :class:`~.few.DrawsFromFew`."""

    def __call__(self, logits: Tensor, history: History) -> Tensor | None:
        """Ids ``[batch, width]`` from raw logits ``[batch, width, vocab]``; None if it takes the long way."""
        if logits.dtype is not torch.float32 or logits.device.type != "cpu":
            return None
        scores, ids = logits.numpy(), history.ids.numpy()
        lengths, prompts, streams = history.length.numpy(), history.prompt.numpy(), history.stream.numpy()
        batch, width, vocab = scores.shape
        chosen, one_path = np.empty((batch, width), dtype=np.int64), ids.shape[1] == 1
        for row in range(batch):
            prompt, stream = int(prompts[row]), int(streams[row])
            for column in range(width):
                tokens = ids[row, 0 if one_path else column, : lengths[row, column]]
                token = self._of_one(scores[row, column], Cell(tokens, prompt, stream, vocab))
                if token is None:
                    return None
                chosen[row, column] = token
        return torch.from_numpy(chosen)

    def _of_one(self, logits: Floats, cell: Cell) -> int | None:
        few = self.narrows.to_few(logits, self.before, cell)
        for stage in self.after:
            if few is None:
                return None
            few = stage.of_few(few, cell)
        if few is None:
            return None
        token: int | None = self.selection.from_few(few, cell)
        return token


@attrs.frozen(eq=False)
class QuickGreedy:
    """The likeliest token of the raw logits."""

    def __call__(self, logits: Tensor, history: History) -> Tensor | None:
        """Ids ``[batch, width]``, -1 where there is none, from ``[batch, width, vocab]``."""
        if logits.dtype is not torch.float32 or logits.device.type != "cpu":
            return None
        scores = logits.numpy()
        batch, width, _ = scores.shape
        chosen = scores.argmax(axis=-1)
        for row in range(batch):
            for column in range(width):
                # A comparison with NaN is false as well, so garbage is never taken for a choice.
                if not scores.item(row, column, chosen.item(row, column)) > -math.inf:
                    chosen[row, column] = -1
        return torch.from_numpy(chosen)


Quick = QuickChoice | QuickGreedy


def quick_choice(stages: Sequence[Processor], selection: Selection) -> Quick | None:
    """The quick way to choose as *stages* and *selection* do; None if there is none."""
    if not stages and type(selection) is Greedy:
        return QuickGreedy()
    if offered(selection, "from_few") is None:
        return None
    for index, stage in enumerate(stages):
        if _offers(stage, "to_few"):
            before, after = stages[:index], stages[index + 1 :]
            known = all(_offers(one, "of_few") for one in stages)
            bounded = all(_offers(one, "at_most") for one in before)
            if known and bounded and len(stages) <= _STAGES:
                return QuickChoice(tuple(before), stage, tuple(after), selection)
            return None
    return None


def _offers(stage: Processor, name: str) -> bool:
    """Whether *stage* has the method *name*, and parameters for it."""
    return offered(stage, name) is not None and bool(getattr(stage, "takes_few", False))
