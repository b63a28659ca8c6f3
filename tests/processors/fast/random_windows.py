"""Logits of every kind, and parameters for the stages that have short cuts."""

import itertools
import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

from decodekit.decoding import History, Processor
from decodekit.decoding.sampling import noise
from decodekit.processors import MinP, NoRepeatNgram, RepetitionPenalty, Temperature, TopK, TopP

KINDS = (
    *("distinct", "bfloat16", "whole", "masked", "few", "equal", "empty", "negative", "odd", "huge", "tiny"),
)


def window(rng: random.Random, kind: str) -> tuple[Tensor, History]:
    """Logits of a *kind*, of one to four rows and one to three columns, and what was said before them."""
    vocab = rng.choice((7, 90, 700, 1031, 5000))
    # Large ones take long.
    batch, width = rng.randint(1, 4 if vocab < 5000 else 2), rng.randint(1, 3 if vocab < 5000 else 1)
    generator = torch.Generator().manual_seed(rng.randrange(2**32))
    scale = rng.choice((0.05, 1.0, 4.0, 60.0))
    logits = scale * torch.randn(batch, width, vocab, generator=generator)
    if kind == "bfloat16":
        logits = logits.bfloat16().float()
    elif kind == "whole":
        logits = (logits.round() * math.log(2)).float()
    elif kind == "masked":
        logits[torch.rand(logits.shape, generator=generator) < 0.9] = -torch.inf
    elif kind == "few":
        logits[..., 2:-1] = -torch.inf
    elif kind == "equal":
        logits = torch.zeros_like(logits)
    elif kind == "empty":
        logits[-1] = -torch.inf
    elif kind == "negative":
        logits = logits - 300.0
    elif kind == "odd":
        for _ in range(2):
            place = rng.randrange(batch), rng.randrange(width), rng.randrange(vocab)
            logits[place] = rng.choice((math.nan, math.inf, -math.inf, 3e38, -3e38))
    elif kind == "huge":
        logits = logits * rng.choice((1e13, 1e37))
    elif kind == "tiny":
        logits = logits * 1e-40
    return logits, _history(rng, logits, generator)


def _history(rng: random.Random, logits: Tensor, generator: torch.Generator) -> History:
    """Some of the largest logits' tokens and others, on one path or one a column."""
    batch, width, vocab = logits.shape
    paths = rng.choice((1, width))
    ids = torch.randint(0, vocab + 2, (batch, paths, 14), generator=generator)
    favourites = logits.nan_to_num()[:, :paths].topk(min(6, vocab), dim=-1).indices
    ids[..., : favourites.shape[-1]] = favourites
    # So that n-grams repeat.
    ids[..., 9:11] = ids[..., :2]
    length = torch.randint(0, 13 - width, (batch, 1), generator=generator) + torch.arange(width)
    prompt = (length[:, 0] * torch.rand(batch, generator=generator)).long()
    return History(ids, length, prompt, noise.random_streams(torch.arange(batch), rng.randrange(100)))


def _of_rows(rng: random.Random, rows: int, draw: Callable[[], float]) -> float | list[float]:
    """One number for all rows, or one per row."""
    return [draw() for _ in range(rows)] if rng.random() < 0.3 else draw()


def _top_k(rng: random.Random, rows: int) -> TopK:
    k = _of_rows(rng, rows, lambda: rng.choice((0, 1, 3, 5, 40, 100)))
    return TopK(k, ties=rng.choice(("keep", "keep", "first")))  # type: ignore[arg-type]


def _top_p(rng: random.Random, rows: int) -> TopP:
    p = _of_rows(rng, rows, lambda: rng.choice((1e-30, 0.3, 0.5, 0.9, 0.99, 1.0, rng.random() or 1.0)))
    ties, least = rng.choice(("last", "last", "first", "keep")), rng.choice((1, 1, 3))
    return TopP(p, ties=ties, min_tokens=least)


def _min_p(rng: random.Random, rows: int) -> MinP:
    p = _of_rows(rng, rows, lambda: rng.choice((0.0, 1e-41, 0.02, 0.1, 0.5, 1.0)))
    return MinP(p, min_tokens=rng.choice((1, 1, 3)))


def _temperature(rng: random.Random, rows: int) -> Temperature:
    return Temperature(_of_rows(rng, rows, lambda: rng.choice((1e-4, 0.01, 0.5, 0.8, 1.0, 1.7, 3.0, 1e4))))


def _window(rng: random.Random, rows: int) -> int | list[int] | None:
    found = _of_rows(rng, rows, lambda: rng.choice((0, 2, 5)))
    return rng.choice((None, None, found))  # type: ignore[return-value]


def _repetition_penalty(rng: random.Random, rows: int) -> RepetitionPenalty:
    penalty = _of_rows(rng, rows, lambda: rng.choice((0.3, 1.0, 1.1, 1.5, 50.0, 1e10)))
    recent = _window(rng, rows)
    fade = 0 if recent is None else rng.choice((0, 0, 3))
    flags = rng.random() < 0.7, rng.random() < 0.2
    return RepetitionPenalty(penalty, flags[0], recent, fade, flags[1])


def _no_repeat_ngram(rng: random.Random, rows: int) -> NoRepeatNgram:
    n = _of_rows(rng, rows, lambda: rng.choice((0, 1, 2, 3, 6)))
    return NoRepeatNgram(n, rng.random() < 0.7, _window(rng, rows))  # type: ignore[arg-type]


MAKERS: dict[str, Callable[[random.Random, int], Processor]] = {
    "TopK": _top_k,
    "TopP": _top_p,
    "MinP": _min_p,
    "Temperature": _temperature,
    "RepetitionPenalty": _repetition_penalty,
    "NoRepeatNgram": _no_repeat_ngram,
}
"""A stage with random parameters, some of them one per row, for so many rows."""

ORDERS = [order for size in range(5) for order in itertools.permutations(MAKERS, size)]
"""Every order of up to four of them."""
