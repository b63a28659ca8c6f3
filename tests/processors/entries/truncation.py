"""Processors that drop the unlikely."""

import math
from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from decodekit.processors import MinP, TopK, TopP

from .entry import Entry, off_or


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
}
