"""The codes that a stop condition gives."""

import torch

from decodekit.decoding import History
from decodekit.decoding.protocols import StopCondition


def codes(condition: StopCondition, ids: list[list[int]], prompt: int = 1) -> list[list[int]]:
    """The codes of *condition* at every token after the prompt."""
    tokens = torch.tensor(ids)
    length = torch.arange(prompt + 1, tokens.shape[1] + 1).expand(len(ids), -1)
    history = History(
        tokens[:, None], length, torch.full((len(ids),), prompt), torch.zeros(len(ids), dtype=torch.int64)
    )
    return condition(torch.zeros(*length.shape, 10), history).tolist()
