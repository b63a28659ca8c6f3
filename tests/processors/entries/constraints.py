"""Processors that forbid and demand."""

from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from decodekit.processors import LogitBias, MinNewTokens, SuppressTokens

from .entry import Entry, off_or

ENTRIES = {
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
