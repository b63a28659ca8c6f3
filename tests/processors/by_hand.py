"""Distributions and histories that can be done in one's head."""

import torch
from torch import Tensor

from decodekit.decoding.history import History
from decodekit.decoding.protocols import Processor


def after(ids: list[int], prompt: int = 0) -> History:
    """One column that follows *ids*, the first *prompt* of them prompt."""
    length = torch.tensor([[len(ids)]])
    return History(torch.tensor([[[*ids, -1]]]), length, torch.tensor([prompt]), torch.tensor([0]))


NOTHING = after([])
"""For processors that do not look."""


def run(processor: Processor, logits: list[float], history: History = NOTHING) -> list[float]:
    """Process one row of one column."""
    processed: Tensor = processor(torch.tensor([[logits]]), history)
    return processed[0, 0].tolist()  # type: ignore[no-any-return]


def kept(processor: Processor, probs: list[float], history: History = NOTHING) -> list[int]:
    """The tokens that a processor leaves of a distribution."""
    processed = processor(torch.tensor([[probs]]).log(), history)
    return (processed[0, 0] > -torch.inf).nonzero()[:, 0].tolist()  # type: ignore[no-any-return]


def stays(processor: Processor, logits: list[float], history: History = NOTHING) -> list[int]:
    """The tokens that a processor leaves of these logits."""
    return [token for token, x in enumerate(run(processor, logits, history)) if x > -float("inf")]
