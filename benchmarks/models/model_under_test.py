"""What is measured: a decoder over random weights of a shape, or over a user's own model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from ..decoding import Generator, MaxNewTokens, Slots
from ..neuron_backend import StaticDecoder, compile_decoder
from ..neuron_backend.targets.detect import probe
from ..neuron_backend.weights import dtype_name, weight_dtype
from .machine import processor_name
from .shapes import Shape

WIDEST_PROMPT = 512
"""Columns of a forward over a prompt, at most."""


@attrs.frozen
class Subject:
    """A model, and how it is to be compiled."""

    model: Shape | Path
    """Random weights of a shape, or a folder with a model."""

    target: str = "auto"
    dtype: str | None = None
    """None: bfloat16 for a shape, the model's own for a folder."""

    weights: str | None = None
    threads: int | None = None

    @property
    def name(self) -> str:
        """The shape's, or the folder's."""
        return self.model.name

    @property
    def description(self) -> str:
        """What it is, and whether it is smaller than its name says."""
        return str(self.model)

    @property
    def is_scaled(self) -> bool:
        """Whether its figures are no figures of the model that it is called after."""
        return isinstance(self.model, Shape) and self.model.scaled_from is not None

    def decoder(self, batch: int, max_length: int, widths: Sequence[int]) -> StaticDecoder:
        """
        Compile it.

        Raises:
            ValueError: An argument breaks its rule.
        """
        dtype = weight_dtype(self.dtype)
        model: Any = self.model
        if isinstance(self.model, Shape):
            model = self.model.model(max_length, dtype or torch.bfloat16)
        return compile_decoder(
            model,
            batch_size=batch,
            max_length=max_length,
            widths=widths,
            scored_width=1,
            target=self.target,
            dtype=dtype,
            weights=self.weights,
            threads=self.threads,
        )


def prompt_widths(prompts: Sequence[int]) -> tuple[int, ...]:
    """
    One column, and as many as the shortest of *prompts* fills: a prompt goes through in whole forwards.

    >>> prompt_widths([256, 512, 768]), prompt_widths([2048]), prompt_widths([1])
    ((1, 256), (1, 512), (1,))
    """
    return tuple(sorted({1, min(WIDEST_PROMPT, *prompts)}))


@attrs.frozen
class Generation:
    """What one run took."""

    seconds: float
    """From the call to the last token."""

    first_seconds: float
    """From the call to the first token."""

    tokens: int
    """New ones, of all rows."""


def generate(decoder: StaticDecoder, prompts: Tensor, count: int) -> Generation:
    """
    *count* tokens after each of *prompts*, greedily; what the decoder remembers is forgotten first.

    Args:
        decoder: With as many rows as there are prompts.

        prompts: ``[batch, length]`` int64.

        count: At least 1.
    """
    Slots.of(decoder).forget()
    spent = Generator(decoder, stop=MaxNewTokens(count))(prompts).statistics
    return Generation(spent.total_seconds, spent.first_token_seconds or 0.0, spent.tokens)


def random_prompts(decoder: StaticDecoder, length: int) -> Tensor:
    """``[batch, length]``, the same at every call."""
    shape = decoder.shape
    rng = torch.Generator().manual_seed(length)
    return torch.randint(shape.vocab_size, (shape.batch_size, length), generator=rng)


def device_name(decoder: StaticDecoder) -> str:
    """What computes, in words."""
    if decoder.target.startswith("cuda"):
        return torch.cuda.get_device_name()
    if decoder.target.startswith("neuron"):
        found = probe()
        return f"AWS Neuron ({found.kind}): {found.devices} devices, {found.cores} cores of PyTorch's"
    return processor_name()


def decoder_settings(decoder: StaticDecoder) -> dict[str, Any]:
    """What became of the choices that were left open."""
    return {
        "target": decoder.target,
        "dtype": dtype_name(decoder.step.model.dtype),
        "weights": str(decoder.weights),
        "widths": decoder.shape.widths,
        "threads": decoder.threads or torch.get_num_threads(),
    }
