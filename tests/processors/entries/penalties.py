"""Processors that discourage what was said."""

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from decodekit.processors import FrequencyPenalty, NoRepeatNgram, PresencePenalty, RepetitionPenalty

from .entry import Entry, off_or


def presence(penalty: float, prompt: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The penalty by its definition, token by token."""

    def subtract(ids: Tensor, logits: Tensor) -> Tensor:
        generated = ids[0, prompt:].tolist()
        return torch.tensor(
            [[x - penalty * (token in generated) for token, x in enumerate(logits[0].tolist())]],
            dtype=logits.dtype,
        )

    return subtract


def frequency(penalty: float, prompt: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The penalty by its definition, token by token."""

    def subtract(ids: Tensor, logits: Tensor) -> Tensor:
        generated = ids[0, prompt:].tolist()
        return torch.tensor(
            [[x - penalty * generated.count(token) for token, x in enumerate(logits[0].tolist())]],
            dtype=logits.dtype,
        )

    return subtract


ENTRIES = {
    "RepetitionPenalty": Entry(
        RepetitionPenalty,
        st.floats(0.2, 3.0),
        1.0,
        0.5,
        lambda value, prompt: hf.RepetitionPenaltyLogitsProcessor(value),
    ),
    "RepetitionPenalty without the prompt": Entry(
        lambda value: RepetitionPenalty(value, include_prompt=False),
        st.floats(0.2, 3.0),
        1.0,
        0.5,
        lambda value, prompt: hf.RepetitionPenaltyLogitsProcessor(value, prompt_ignore_length=prompt),
    ),
    "PresencePenalty": Entry(PresencePenalty, st.floats(-2.0, 2.0), 0.0, 0.5, presence, atol=1e-6),
    "PresencePenalty with the prompt": Entry(
        lambda value: PresencePenalty(value, include_prompt=True),
        st.floats(-2.0, 2.0),
        0.0,
        0.5,
        lambda value, prompt: presence(value, 0),
        atol=1e-6,
    ),
    "FrequencyPenalty": Entry(FrequencyPenalty, st.floats(-2.0, 2.0), 0.0, 0.5, frequency, atol=1e-5),
    "FrequencyPenalty with the prompt": Entry(
        lambda value: FrequencyPenalty(value, include_prompt=True),
        st.floats(-2.0, 2.0),
        0.0,
        0.5,
        lambda value, prompt: frequency(value, 0),
        atol=1e-5,
    ),
    "NoRepeatNgram": Entry(
        NoRepeatNgram, st.integers(0, 5), 0, 2, off_or(0, hf.NoRepeatNGramLogitsProcessor), hard=True
    ),
}
