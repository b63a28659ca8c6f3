"""Processors that drop the unlikely."""

from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from decodekit.processors import MinP, TopK, TopP

from .entry import Entry, off_or

ENTRIES = {
    "TopK": Entry(TopK, st.integers(0, 15), 0, 2, off_or(0, hf.TopKLogitsWarper)),
    "TopP": Entry(TopP, st.floats(0.01, 1.0), 1.0, 0.5, off_or(1.0, hf.TopPLogitsWarper)),
    "MinP": Entry(MinP, st.floats(0.0, 1.0), 0.0, 0.5, lambda value, prompt: hf.MinPLogitsWarper(value)),
}
