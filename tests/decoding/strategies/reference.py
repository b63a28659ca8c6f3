"""Guidance and ensembles by hand, over tables."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from decodekit.decoding import History, Sample
from decodekit.decoding.sampling import noise
from decodekit.decoding.testing.scripted_decoder import whole_prefix
from decodekit.testing import ScriptedDecoder

TABLE = 2 * torch.randn(97, 9, generator=torch.Generator().manual_seed(3))
OTHER = 2 * torch.randn(97, 9, generator=torch.Generator().manual_seed(5))
NEAR = TABLE + 0.5 * torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(4))


def scripted(rows: int, table: Tensor = TABLE, **options: Any) -> ScriptedDecoder:
    """A decoder over *table*."""
    return ScriptedDecoder(table, **{"batch_size": rows, "max_length": 48, **options})


def after(table: Tensor, ids: Sequence[int]) -> Tensor:
    """The logits after *ids*, ``[vocab]``."""
    return table[whole_prefix(ids) % len(table)]


def text_of(
    logits: Callable[[list[int]], Tensor], prompt: list[int], count: int, seed: int | None, stream: int = 0
) -> list[int]:
    """*count* tokens one by one, by argmax or with the noise of a seed; *logits* of the new tokens so far."""
    new: list[int] = []
    streams = noise.random_streams(torch.tensor([stream]), seed or 0)
    for _ in range(count):
        scores = logits(new)
        if seed is None:
            new.append(int(scores.argmax()))
            continue
        ids = torch.tensor([[prompt + new]])
        length = torch.tensor([[len(prompt) + len(new)]])
        history = History(ids, length, torch.tensor([len(prompt)]), streams)
        new.append(int(Sample(seed)(scores[None, None], history)))
    return new


def guided_by_hand(prompt: list[int], negative: list[int], scale: float) -> Callable[[list[int]], Tensor]:
    """The guided logits after so many new tokens, from the table."""

    def logits(new: list[int]) -> Tensor:
        towards = after(TABLE, prompt + new).log_softmax(dim=-1)
        away = after(TABLE, negative + new).log_softmax(dim=-1)
        return away + scale * (towards - away)

    return logits
