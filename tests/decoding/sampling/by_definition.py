"""Slow and plain: what samplers are defined to do, on lists."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from decodekit.decoding import History, TokenLogprob
from decodekit.decoding.sampling import noise


def history_at(length: list[int], random_streams: Tensor) -> History:
    """One column for each row, after so many tokens of no content."""
    lengths = torch.tensor(length)[:, None]
    ids = torch.zeros(len(length), 1, max(length) + 1, dtype=torch.int64)
    return History(ids, lengths, lengths[:, 0], random_streams)


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


def logprob_of(token: int, logits: list[float], top: int) -> TokenLogprob:
    """The log-probability of a token, and the top tokens."""
    best = max(logits)
    normaliser = best + math.log(math.fsum(math.exp(x - best) for x in logits))
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:top]
    rank = 1 + sum(x > logits[token] for x in logits)
    return TokenLogprob(
        token, logits[token] - normaliser, rank, tuple((i, logits[i] - normaliser) for i in order)
    )


def check_alike(expected: Sequence[TokenLogprob | None], actual: Sequence[TokenLogprob | None]) -> None:
    """As many, of the same tokens, ranks and order, and equal up to the rounding of float64."""
    assert len(expected) == len(actual)
    for one, other in zip(expected, actual, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert (one.id, one.rank) == (other.id, other.rank)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        pairs = [(one.logprob, other.logprob)]
        pairs += [(a, b) for (_, a), (_, b) in zip(one.top, other.top, strict=True)]
        assert all(math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12) for a, b in pairs), (one, other)
