"""Catalogue entries of watermarks."""

from collections.abc import Callable
from functools import lru_cache

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from decodekit.processors import KirchenbauerWatermark, SynthIDWatermark

from .entry import Entry


@lru_cache
def kirchenbauer(vocab_size: int, scheme: str, context_width: int) -> hf.WatermarkLogitsProcessor:
    """Hugging Face's own, which draws a large table whenever it is made."""
    return hf.WatermarkLogitsProcessor(
        vocab_size, "cpu", greenlist_ratio=0.5, seeding_scheme=scheme, context_width=context_width
    )


def left_hash(bias: float, prompt: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Hugging Face's own."""

    def mark(ids: Tensor, logits: Tensor) -> Tensor:
        watermark = kirchenbauer(logits.shape[-1], "lefthash", 1)
        watermark.bias = bias
        return watermark(ids, logits)

    return mark


def self_hash(bias: float, prompt: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Token by token, with the list that Hugging Face draws for it; that one asks no fewer than 40."""

    def mark(ids: Tensor, logits: Tensor) -> Tensor:
        watermark = kirchenbauer(logits.shape[-1], "selfhash", 2)
        marked = logits.clone()
        for token in range(logits.shape[-1] if ids.shape[-1] >= 2 else 0):
            sequence = torch.cat([ids[0], torch.tensor([token])])
            if token in watermark._get_greenlist_ids(sequence):
                marked[0, token] += bias
        return marked

    return mark


def synthid(keys: list[int], prompt: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Hugging Face's own, fed token by token; its lowest number is -inf."""

    def mark(ids: Tensor, logits: Tensor) -> Tensor:
        if not keys:
            return logits
        watermark = hf.SynthIDTextWatermarkLogitsProcessor(
            3, keys, 64, sampling_table_seed=0, context_history_size=2, device=torch.device("cpu")
        )
        for length in range(prompt, ids.shape[-1]):
            watermark(ids[:, :length], torch.zeros_like(logits))
        # In float64, where it rounds as little as we do.
        marked = watermark(ids, logits.double())
        return marked.masked_fill(marked == torch.finfo(torch.float64).min, -torch.inf).to(logits.dtype)

    return mark


ENTRIES = {
    "KirchenbauerWatermark": Entry(
        lambda value: KirchenbauerWatermark(greenlist_ratio=0.5, bias=value),
        st.floats(-2.0, 4.0),
        0.0,
        1.5,
        left_hash,
        host_only=True,
    ),
    "KirchenbauerWatermark self-hashing": Entry(
        lambda value: KirchenbauerWatermark(
            greenlist_ratio=0.5, bias=value, seeding_scheme="selfhash", context_width=2
        ),
        st.floats(-2.0, 4.0),
        0.0,
        1.5,
        self_hash,
        host_only=True,
    ),
    "SynthIDWatermark": Entry(
        lambda value: SynthIDWatermark(value, ngram_len=3, context_history_size=2, sampling_table_size=64),
        st.lists(st.integers(0, 10**6), max_size=4),
        [],
        [654, 400, 836],
        synthid,
        rows=False,
        atol=1e-5,
        # Logarithms of probabilities, of which float64 leaves little where 1 is taken from nearly 1.
        floor=-20.0,
    ),
}
