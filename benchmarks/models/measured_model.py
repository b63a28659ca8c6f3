"""The model under test: a decoder over random weights of a shape, or over a user's own model."""

import argparse
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from ...decoding import Generator, MaxNewTokens, Slots, Statistics
from ...neuron_backend import CompiledDecoder, compile_decoder
from ...neuron_backend.models.weights import dtype_name, weight_dtype
from ...neuron_backend.targets.neuron.detect import probe
from ...neuron_backend.targets.registry import resolve
from ..measuring.machine import processor_name
from .shapes import Shape, add_scaling, shape_named

WIDEST_PROMPT = 512
"""The most columns of a prefill forward."""


@attrs.frozen
class ModelUnderTest:
    """A model, and how it is to be compiled."""

    source: Shape | Path
    """Random weights of a shape, or a folder with a model."""

    target: str = "auto"
    dtype: str | None = None
    """None: bfloat16 for a shape, the model's own for a folder."""

    weights: str | None = None
    threads: int | None = None

    @property
    def name(self) -> str:
        """The name of the shape or of the folder."""
        return self.source.name

    @property
    def description(self) -> str:
        """The sizes, and whether the model is smaller than its name says."""
        return str(self.source)

    @property
    def is_scaled(self) -> bool:
        """True if the shape was scaled down, so that the figures are not those of the named model."""
        return isinstance(self.source, Shape) and self.source.scaled_from is not None

    @property
    def cache_key(self) -> str:
        """A folder name for the compiled decoder."""
        source = self.source
        if isinstance(source, Shape):
            name = f"{source.name}-{source.digest()}"
        else:
            # A hub id has no files here.
            files = sorted(source.iterdir()) if source.is_dir() else [source] if source.exists() else []
            state = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
            place = source.resolve() if files else source
            name = f"{place.name}-{hashlib.sha256(repr((place, state)).encode()).hexdigest()[:12]}"
        return f"{name}-{resolve(self.target).name}-{self.dtype}-{self.weights}"

    def label(self, device: str) -> str:
        """The name in a table row."""
        return f"{self.name}{', SCALED DOWN' if self.is_scaled else ''}, {device}"

    def decoder(
        self, batch: int, max_length: int, widths: Sequence[int], *, scored_width: int = 1
    ) -> CompiledDecoder:
        """
        Compile it; *batch* is ``compile_decoder``'s ``batch_size``, the others are as there.

        Raises:
            ValueError: An argument is invalid.
        """
        dtype = weight_dtype(self.dtype)
        model: Any = self.source
        if isinstance(self.source, Shape):
            model = self.source.model(max_length, dtype or torch.bfloat16)
        return compile_decoder(
            model,
            batch_size=batch,
            max_length=max_length,
            widths=widths,
            scored_width=scored_width,
            target=self.target,
            dtype=dtype,
            weights=self.weights,
            threads=self.threads,
        )


def add_model(parser: argparse.ArgumentParser, shape: str, *, several: bool = False) -> None:
    """Add the arguments that select models; :func:`models_of` reads them."""
    add = parser.add_argument
    if several:
        add("--shape", nargs="+", default=[shape], metavar="NAME", help=f"models by name ({shape})")
    else:
        add("--shape", nargs=1, default=[shape], metavar="NAME", help=f"a model by name ({shape})")
    add("--model", type=Path, metavar="DIR", help="a model of your own instead of a shape")
    add_scaling(parser)
    add("--target", default="auto", metavar="NAME", help="as compile_decoder's (%(default)s)")
    add("--dtype", metavar="NAME", help="bfloat16 for a shape, the model's own")
    add("--weights", metavar="FORMAT", help="int8 or int4 (as --dtype)")


def models_of(options: argparse.Namespace) -> list[ModelUnderTest]:
    """
    The models that *options* select.

    Raises:
        ValueError: A shape is unknown or cannot be scaled so.
    """
    sources: list[Shape | Path]
    if options.model is None:
        scale = {"layers": options.layers, "hidden": options.hidden_divisor}
        sources = [shape_named(name).scaled(**scale) for name in options.shape]
    elif options.layers is None and options.hidden_divisor is None:
        sources = [options.model]
    else:
        raise ValueError("--layers and --hidden-divisor apply to shapes: they exclude --model")
    return [
        ModelUnderTest(source, options.target, options.dtype, options.weights, options.threads)
        for source in sources
    ]


def model_notes(models: Iterable[ModelUnderTest]) -> list[str]:
    """What a report says of its models."""
    models = list(models)
    notes = [f"{description}." for description in dict.fromkeys(model.description for model in models)]
    if any(model.is_scaled for model in models):
        notes.append("A scaled-down model does not predict the figures of the full one.")
    return notes


def prefill_widths(prompts: Sequence[int]) -> tuple[int, ...]:
    """
    Width 1 and the length of the shortest of *prompts*, so that a prompt is fed in whole forwards.

    >>> prefill_widths([256, 512, 768]), prefill_widths([2048]), prefill_widths([1])
    ((1, 256), (1, 512), (1,))
    """
    return tuple(sorted({1, min(WIDEST_PROMPT, *prompts)}))


def generate(decoder: CompiledDecoder, prompts: Tensor, count: int) -> Statistics:
    """
    Generate *count* tokens after each of *prompts*, greedily, with an empty cache; how long it took.

    Args:
        decoder: With as many rows as there are prompts.

        prompts: ``[batch, length]`` int64.

        count: At least 1.
    """
    Slots.of(decoder).forget()
    return Generator(decoder, stop=MaxNewTokens(count))(prompts).statistics


def random_prompts(decoder: CompiledDecoder, length: int) -> Tensor:
    """Token ids ``[batch, length]``, the same at every call."""
    shape = decoder.shape
    rng = torch.Generator().manual_seed(length)
    return torch.randint(shape.vocab_size, (shape.batch_size, length), generator=rng)


def device_name(decoder: CompiledDecoder) -> str:
    """The device that computes, in words."""
    return device_of(decoder.target)


def device_of(target: str) -> str:
    """The device that decoders of the target of that name compute on, in words."""
    if target.startswith("cuda"):
        return torch.cuda.get_device_name()
    if target.startswith("neuron"):
        found = probe()
        return f"AWS Neuron ({found.kind}): {found.devices} devices, {found.cores} cores of PyTorch's"
    return processor_name()


def decoder_settings(decoder: CompiledDecoder) -> dict[str, Any]:
    """The settings of *decoder*, defaults resolved."""
    return {
        "target": decoder.target,
        "dtype": dtype_name(decoder.step.model.dtype),
        "weights": str(decoder.weights),
        "widths": decoder.shape.widths,
        "threads": decoder.threads or torch.get_num_threads(),
    }
