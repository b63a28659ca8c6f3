"""Choosing from a few tokens, without a tensor of all of them."""

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from .few import Cell, Few, Floats
from .greedy import Greedy
from .history import History
from .offered import offered
from .protocols import Processor, Selection
from .scores import Scores

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

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Scores] | None:
        """As :class:`~.choose.Choose`, of raw logits ``[batch, width, vocab]``; None for the long way."""
        if logits.dtype is not torch.float32 or logits.device.type != "cpu":
            return None
        scores, ids = logits.numpy(), history.ids.numpy()
        lengths, prompts, streams = history.length.numpy(), history.prompt.numpy(), history.stream.numpy()
        batch, width, vocab = scores.shape
        chosen, one_path = np.empty((batch, width), dtype=np.int64), ids.shape[1] == 1
        left: list[Few] = []
        for row in range(batch):
            prompt, stream = int(prompts[row]), int(streams[row])
            for column in range(width):
                tokens = ids[row, 0 if one_path else column, : lengths[row, column]]
                cell = Cell(tokens, prompt, stream, vocab)
                few = self._few_of(scores[row, column], cell)
                token = None if few is None else self.selection.from_few(few, cell)
                if few is None or token is None:
                    return None
                chosen[row, column] = token
                left.append(few)
        return torch.from_numpy(chosen), Scores(lambda: _dense(left, scores.shape))

    def _few_of(self, logits: Floats, cell: Cell) -> Few | None:
        few: Few | None = self.narrows.to_few(logits, self.before, cell)
        for stage in self.after:
            if few is None:
                return None
            few = stage.of_few(few, cell)
        return few


@attrs.frozen(eq=False)
class QuickGreedy:
    """The likeliest token of the raw logits."""

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Scores] | None:
        """As :class:`QuickChoice`; the id is -1 where there is none."""
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
        return torch.from_numpy(chosen), Scores(lambda: logits)


def _dense(left: Sequence[Few], shape: tuple[int, ...]) -> Tensor:
    """Logits of all of the vocabulary, ``-inf`` but for what is *left* in each column."""
    whole = np.full(shape, -np.inf, dtype=np.float32)
    for column, (ids, scores) in zip(whole.reshape(-1, shape[-1]), left, strict=True):
        column[ids] = scores
    return torch.from_numpy(whole)


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
