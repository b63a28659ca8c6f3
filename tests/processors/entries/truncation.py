"""Catalogue entries of truncation."""

import itertools
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from decodekit.processors import (
    XTC,
    EpsilonCutoff,
    EtaCutoff,
    MinK,
    MinP,
    PLess,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
)

from .entry import NONE, Entry, off_or

Reference = Callable[[Tensor, Tensor], Tensor]


def unless_dead(reference: Reference) -> Reference:
    """Hugging Face's own, which refuses rows that are all ``-inf``: they stay as they are."""
    return lambda ids, logits: reference(ids, logits) if (logits > -torch.inf).any() else logits


def keeping(kept: Callable[[dict[int, float]], Any]) -> Reference:
    """Mask what *kept* leaves out of the finite logits, given by token."""

    def mask(ids: Tensor, logits: Tensor) -> Tensor:
        finite = {token: x for token, x in enumerate(logits[0].tolist()) if x > -math.inf}
        stays = kept(finite) if finite else ()
        return torch.tensor(
            [[x if token in stays else -math.inf for token, x in enumerate(logits[0].tolist())]],
            dtype=logits.dtype,
        )

    return mask


def probabilities(logits: dict[int, float]) -> dict[int, float]:
    """By token, in float64."""
    weights = {token: math.exp(x - max(logits.values())) for token, x in logits.items()}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def top_h(value: float, top_n: int) -> Reference:
    """Hugging Face's, with another number of tokens."""
    warper = hf.TopHLogitsWarper(value)
    warper.top_n = top_n
    return unless_dead(warper)


def top_n_sigma(value: float) -> Reference:
    """The floor by its definition."""

    def kept(logits: dict[int, float]) -> list[int]:
        floor = max(logits.values()) - value * statistics.pstdev(logits.values())
        return [token for token, x in logits.items() if x >= floor]

    return keeping(kept)


def p_less(value: None, prompt: int) -> Reference:
    """The floor by its definition."""

    def kept(logits: dict[int, float]) -> list[int]:
        probs = probabilities(logits)
        floor = sum(p * p for p in probs.values())
        return [token for token, p in probs.items() if p >= floor]

    return keeping(kept)


def min_k(value: float, prompt: int) -> Reference:
    """Algorithm 1 of the paper, step by step."""

    def kept(logits: dict[int, float]) -> list[int]:
        order = sorted(logits, key=lambda token: -logits[token])
        if len(order) == 1:
            return order
        falls = [logits[a] - logits[b] for a, b in itertools.pairwise(order)]
        steps = [fall / (i + 1) for i, fall in enumerate(falls)]
        cliff = steps.index(max(steps)) + 1
        fallback = int(value / (logits[order[0]] - logits[order[-1]]))
        return order[: max(cliff, fallback)]

    return keeping(kept)


def xtc(threshold: float, keep: frozenset[int] = frozenset()) -> Reference:
    """What the sampler does when it acts, token by token."""

    def kept(logits: dict[int, float]) -> set[int]:
        probs = probabilities(logits)
        top = sorted((token for token, p in probs.items() if p >= threshold), key=lambda token: -probs[token])
        excluded = set(top[:-1])
        return set(logits) if excluded & keep else set(logits) - excluded

    return keeping(kept)


def nucleus(p: float, ties: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Token by token from the likeliest down, until the mass reaches p."""

    def keep(ids: Tensor, logits: Tensor) -> Tensor:
        row = logits[0].tolist()
        probs = logits[0].double().softmax(dim=-1).tolist()
        order = sorted(range(len(row)), key=lambda token: (-row[token], token))
        kept: list[int] = []
        while order and (not kept or sum(probs[token] for token in kept) < p):
            kept.append(order.pop(0))
        if ties == "keep":
            kept += [token for token in order if row[token] == row[kept[-1]]]
        keeps = [x if token in kept else -math.inf for token, x in enumerate(row)]
        return torch.tensor([keeps], dtype=logits.dtype)

    return keep


def first_k(k: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Token by token from the likeliest down, of equals the lowest id first."""

    def keep(ids: Tensor, logits: Tensor) -> Tensor:
        row = logits[0].tolist()
        order = sorted(range(len(row)), key=lambda token: (-row[token], token))
        keeps = [x if token in order[:k] else -math.inf for token, x in enumerate(row)]
        return torch.tensor([keeps], dtype=logits.dtype)

    return keep


ENTRIES = {
    "TopK exactly": Entry(
        lambda value: TopK(value, ties="first"), st.integers(0, 15), 0, 2, off_or(0, first_k)
    ),
    "TopP of the first": Entry(
        lambda value: TopP(value, ties="first"),
        st.floats(0.01, 0.99),
        1.0,
        0.5,
        off_or(1.0, lambda value: nucleus(value, "first")),
    ),
    "TopP with ties": Entry(
        lambda value: TopP(value, ties="keep"),
        st.floats(0.01, 0.99),
        1.0,
        0.5,
        off_or(1.0, lambda value: nucleus(value, "keep")),
    ),
    "TopP of at least 3": Entry(
        lambda value: TopP(value, min_tokens=3),
        st.floats(0.01, 0.99),
        1.0,
        0.5,
        off_or(1.0, lambda value: hf.TopPLogitsWarper(value, min_tokens_to_keep=3)),
    ),
    "MinP of at least 3": Entry(
        lambda value: MinP(value, min_tokens=3),
        st.floats(0.0, 1.0),
        0.0,
        0.5,
        off_or(0.0, lambda value: hf.MinPLogitsWarper(value, min_tokens_to_keep=3)),
    ),
    "TopK": Entry(TopK, st.integers(0, 15), 0, 2, off_or(0, hf.TopKLogitsWarper)),
    "TopP": Entry(TopP, st.floats(0.01, 1.0), 1.0, 0.5, off_or(1.0, hf.TopPLogitsWarper)),
    "MinP": Entry(MinP, st.floats(0.0, 1.0), 0.0, 0.5, lambda value, prompt: hf.MinPLogitsWarper(value)),
    "Typical": Entry(Typical, st.floats(0.01, 0.99), 1.0, 0.5, off_or(1.0, hf.TypicalLogitsWarper)),
    "Typical of three tokens": Entry(
        lambda value: Typical(value, min_tokens=3),
        st.floats(0.01, 0.99),
        1.0,
        0.5,
        off_or(1.0, lambda value: hf.TypicalLogitsWarper(value, min_tokens_to_keep=3)),
    ),
    "EpsilonCutoff": Entry(
        EpsilonCutoff, st.floats(1e-6, 0.9), 0.0, 0.1, off_or(0.0, hf.EpsilonLogitsWarper)
    ),
    "EpsilonCutoff of three tokens": Entry(
        lambda value: EpsilonCutoff(value, min_tokens=3),
        st.floats(1e-6, 0.9),
        0.0,
        0.1,
        off_or(0.0, lambda value: hf.EpsilonLogitsWarper(value, min_tokens_to_keep=3)),
    ),
    "EtaCutoff": Entry(
        EtaCutoff,
        st.floats(1e-6, 0.9),
        0.0,
        0.1,
        off_or(0.0, lambda value: unless_dead(hf.EtaLogitsWarper(value))),
    ),
    "EtaCutoff of three tokens": Entry(
        lambda value: EtaCutoff(value, min_tokens=3),
        st.floats(1e-6, 0.9),
        0.0,
        0.1,
        off_or(0.0, lambda value: unless_dead(hf.EtaLogitsWarper(value, min_tokens_to_keep=3))),
    ),
    "TopH": Entry(TopH, st.floats(0.01, 0.99), NONE, 0.5, lambda value, prompt: top_h(value, 100)),
    "TopH of three tokens": Entry(
        lambda value: TopH(value, top_n=3),
        st.floats(0.01, 0.99),
        NONE,
        0.5,
        lambda value, prompt: top_h(value, 3),
    ),
    "TopNSigma": Entry(TopNSigma, st.floats(0.1, 4.0), 0.0, 1.0, off_or(0.0, top_n_sigma)),
    "PLess": Entry(lambda value: PLess(), st.none(), NONE, None, p_less, rows=False),
    "MinK": Entry(MinK, st.floats(0.0, 40.0), NONE, 3.0, min_k),
    "XTC": Entry(
        lambda value: XTC(value, 0.1),
        st.sampled_from((0.0, 1.0)),
        0.0,
        1.0,
        off_or(0.0, lambda value: xtc(0.1)),
        host_only=True,
    ),
    "XTC that always acts": Entry(
        lambda value: XTC(1.0, value),
        st.floats(0.01, 0.5),
        NONE,
        0.1,
        lambda value, prompt: xtc(value),
        host_only=True,
    ),
    "XTC with a token to keep": Entry(
        lambda value: XTC(value, 0.1, keep=[2]),
        st.sampled_from((0.0, 1.0)),
        0.0,
        1.0,
        off_or(0.0, lambda value: xtc(0.1, frozenset([2]))),
        host_only=True,
    ),
}
