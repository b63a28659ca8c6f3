"""Small distributions and histories for tests by hand."""

import torch
from torch import Tensor

from decodekit.decoding.history import History
from decodekit.decoding.protocols import Processor


def after(ids: list[int], prompt: int = 0) -> History:
    """History of one column after *ids*, of which the first *prompt* are the prompt."""
    length = torch.tensor([[len(ids)]])
    return History(torch.tensor([[[*ids, -1]]]), length, torch.tensor([prompt]), torch.tensor([0]))


NOTHING = after([])
"""A history for processors that ignore it."""


def run(processor: Processor, logits: list[float], history: History = NOTHING) -> list[float]:
    """Process one row of one column."""
    processed: Tensor = processor(torch.tensor([[logits]]), history)
    return processed[0, 0].tolist()  # type: ignore[no-any-return]


def kept(processor: Processor, probs: list[float], history: History = NOTHING) -> list[int]:
    """Tokens of a distribution that a processor keeps."""
    processed = processor(torch.tensor([[probs]]).log(), history)
    return (processed[0, 0] > -torch.inf).nonzero()[:, 0].tolist()  # type: ignore[no-any-return]


def stays(processor: Processor, logits: list[float], history: History = NOTHING) -> list[int]:
    """Tokens that a processor keeps, given logits."""
    return [token for token, x in enumerate(run(processor, logits, history)) if x > -float("inf")]
