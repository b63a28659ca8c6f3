"""Slow and plain: what selections are defined to do, on lists."""

import math

import torch
from torch import Tensor

from decodekit.decoding import History, noise


def history_at(length: list[int], streams: Tensor) -> History:
    """One column for each row, after so many tokens of no content."""
    lengths = torch.tensor(length)[:, None]
    ids = torch.zeros(len(length), 1, max(length) + 1, dtype=torch.int64)
    return History(ids, lengths, lengths[:, 0], streams)


def softmax(scores: list[float]) -> list[float]:
    """Of logits, some of them -inf."""
    best = max(scores)
    weights = [math.exp(x - best) for x in scores]
    return [w / sum(weights) for w in weights]


def draw(scores: list[float], stream: int, position: int) -> int:
    """A block by its mass and its own Gumbel, then a token of it by logit and the token's own Gumbel."""

    def gumbel(purpose: int, index: int) -> float:
        keys = (torch.tensor([stream]), torch.tensor([position]))
        return float(noise.gumbel(*keys, purpose, torch.tensor([index])))

    def mass(block: range) -> float:
        total = sum(math.exp(scores[i]) for i in block)
        return math.log(total) if total else -math.inf

    size = math.isqrt(len(scores) - 1) + 1
    blocks = [range(start, min(start + size, len(scores))) for start in range(0, len(scores), size)]
    best = max(range(len(blocks)), key=lambda j: mass(blocks[j]) + gumbel(noise.BLOCK, j))
    return max(blocks[best], key=lambda i: scores[i] + gumbel(noise.TOKEN, i - blocks[best][0]))
