"""Processors that forbid and demand."""

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from decodekit.processors import Grammar, LogitBias, MinNewTokens, SuppressTokens

from ..languages import END, PIECES, Brackets
from .entry import Entry, off_or


def brackets_that_may_follow(language: Brackets, prompt: int) -> Callable[[Tensor, Tensor], Tensor]:
    """From the list of all texts."""
    texts = language.texts()

    def mask(ids: Tensor, logits: Tensor) -> Tensor:
        generated = ids[0, prompt:].tolist()
        ended = END in generated
        ids_of_text = generated[: generated.index(END)] if ended else generated
        text = "".join(dict(enumerate(PIECES)).get(token, "?") for token in ids_of_text)
        allowed = {END} if text in texts else set()
        if not ended:
            allowed |= {i for i, piece in enumerate(PIECES) if any(t.startswith(text + piece) for t in texts)}
        forbidden = torch.tensor([token not in allowed for token in range(logits.shape[-1])])
        return logits.masked_fill(forbidden, -torch.inf)

    return mask


ENTRIES = {
    "Grammar": Entry(
        Grammar,
        st.builds(Brackets, st.integers(1, 3)),
        None,
        Brackets(2),
        brackets_that_may_follow,
        rows=False,
        hard=True,
        host_only=True,
    ),
    "MinNewTokens": Entry(
        lambda value: MinNewTokens(value, [3, 1]),
        st.integers(0, 8),
        0,
        2,
        lambda value, prompt: hf.MinNewTokensLengthLogitsProcessor(prompt, value, [3, 1]),
        hard=True,
    ),
    "LogitBias": Entry(
        LogitBias,
        st.dictionaries(st.integers(0, 3), st.sampled_from((-7.5, -0.25, 0.0, 1.5, 20.0)), max_size=4),
        {},
        {1: 0.5},
        off_or(
            {},
            lambda value: hf.SequenceBiasLogitsProcessor({(token,): bias for token, bias in value.items()}),
        ),
        rows=False,
    ),
    "SuppressTokens": Entry(
        SuppressTokens,
        st.lists(st.integers(0, 3), max_size=5),
        [],
        [1],
        lambda value, prompt: hf.SuppressTokensLogitsProcessor(value),
        rows=False,
        hard=True,
    ),
}
