"""Catalogue entries of scaling."""

import math
from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from decodekit.processors import DynamicTemperature, Renormalise, Temperature

from .entry import NONE, Entry


def normalised(value: None, prompt: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Hugging Face's own, which makes NaN of a row without a token."""
    return lambda ids, logits: hf.LogitNormalization()(ids, logits) if logits.amax() > -torch.inf else logits


def dynamic_temperature(low: float, high: float, exponent: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The temperature by its definition."""

    def divide(ids: Tensor, logits: Tensor) -> Tensor:
        finite = [x for x in logits[0].tolist() if x > -math.inf]
        if len(finite) < 2:
            return logits
        weights = [math.exp(x - max(finite)) for x in finite]
        probs = [weight / sum(weights) for weight in weights]
        entropy = -sum(p * math.log(p) for p in probs)
        return logits / (low + (high - low) * (entropy / math.log(len(finite))) ** exponent)

    return divide


ENTRIES = {
    "Renormalise": Entry(
        lambda value: Renormalise(), st.none(), NONE, None, normalised, rows=False, atol=1e-6
    ),
    "Temperature": Entry(
        Temperature, st.floats(0.1, 5.0), 1.0, 0.7, lambda value, prompt: hf.TemperatureLogitsWarper(value)
    ),
    "DynamicTemperature from below": Entry(
        lambda value: DynamicTemperature(value, 1.0),
        st.floats(0.2, 5.0),
        1.0,
        0.7,
        lambda value, prompt: dynamic_temperature(value, 1.0, 1.0),
        atol=1e-4,
    ),
    "DynamicTemperature to above": Entry(
        lambda value: DynamicTemperature(1.0, value, exponent=0.5),
        st.floats(0.2, 5.0),
        1.0,
        1.5,
        lambda value, prompt: dynamic_temperature(1.0, value, 0.5),
        atol=1e-4,
    ),
}
