"""Processors that sharpen and flatten."""

from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from decodekit.processors import Temperature

from .entry import Entry

ENTRIES = {
    "Temperature": Entry(
        Temperature, st.floats(0.1, 5.0), 1.0, 0.7, lambda value, prompt: hf.TemperatureLogitsWarper(value)
    ),
}
