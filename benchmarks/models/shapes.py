"""
Model shapes by name, with random weights: nothing is downloaded.

The sizes are those of the config.json that each model is published with.
"""

import argparse
import hashlib

import attrs
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig, PreTrainedModel


@attrs.frozen
class Shape:
    """The sizes of a model."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = False
    model_type: str = "llama"

    scaled_from: str | None = None
    """The original sizes of a scaled-down shape, in words."""

    def scaled(self, *, layers: int | None = None, hidden: int | None = None) -> "Shape":
        """
        A smaller shape that names the original one.

        Args:
            layers: Number of layers. None: all.

            hidden: Divisor of the width, the feed-forward width and the heads. None: 1.

        Raises:
            ValueError: *layers* exceeds the layers, or *hidden* does not divide.
        """
        if layers is None and hidden in (None, 1):
            return self
        if layers is not None and not 1 <= layers <= self.num_hidden_layers:
            raise ValueError(f"'layers' must be between 1 and {self.num_hidden_layers}: got {layers}")
        divisor = 1 if hidden is None else hidden
        if divisor < 1 or self.num_attention_heads % divisor or self.intermediate_size % divisor:
            raise ValueError(
                f"'hidden' must divide {self.num_attention_heads} heads and {self.intermediate_size}: "
                f"got {hidden}"
            )
        heads = self.num_attention_heads // divisor
        key_value_heads = max(1, self.num_key_value_heads // divisor)
        if heads % key_value_heads:
            raise ValueError(f"'hidden' must leave key heads that divide {heads} heads: got {hidden}")
        was = f"{self.num_hidden_layers} layers of width {self.hidden_size}"
        return attrs.evolve(
            self,
            hidden_size=self.hidden_size // divisor,
            intermediate_size=self.intermediate_size // divisor,
            num_attention_heads=heads,
            num_key_value_heads=key_value_heads,
            num_hidden_layers=self.num_hidden_layers if layers is None else layers,
            scaled_from=was,
        )

    def config(self, max_length: int) -> PretrainedConfig:
        """A transformers config with at least *max_length* positions and no end-of-sequence token."""
        numbers = attrs.asdict(self, filter=lambda field, _: field.name not in _NOT_IN_CONFIG)
        numbers["max_position_embeddings"] = max(max_length, self.max_position_embeddings)
        # Wide enough for one token to stand out, narrow enough for attention to spread over many.
        numbers |= {"bos_token_id": None, "eos_token_id": None, "initializer_range": 0.04}
        if self.model_type == "mistral":
            return MistralConfig(**numbers, sliding_window=4096)
        return LlamaConfig(**numbers)

    def model(self, max_length: int, dtype: torch.dtype, seed: int = 0) -> PreTrainedModel:
        """A model with random weights in evaluation mode, the same for equal *seed*."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                self.config(max_length), dtype=dtype
            )
        found.train(False)
        return found

    def digest(self) -> str:
        """A short digest of the sizes."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:8]

    def __str__(self) -> str:
        text = (
            f"{self.name}: {self.num_hidden_layers} layers of width {self.hidden_size}, "
            f"{self.num_attention_heads}/{self.num_key_value_heads} heads, vocabulary {self.vocab_size}"
        )
        return text if self.scaled_from is None else f"{text}; SCALED DOWN from {self.scaled_from}"


_NOT_IN_CONFIG = ("name", "model_type", "scaled_from")

SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            "smollm2-135m", 576, 1536, 30, 9, 3, 49_152, rope_theta=100_000.0, max_position_embeddings=8192,
            tie_word_embeddings=True,
        ),
        Shape("llama-2-7b", 4096, 11_008, 32, 32, 32, 32_000),
        Shape("llama-2-13b", 5120, 13_824, 40, 40, 40, 32_000),
        Shape("llama-2-70b", 8192, 28_672, 80, 64, 8, 32_000),
        # With the window of version 0.1, which the published figures are of.
        Shape(
            "mistral-7b", 4096, 14_336, 32, 32, 8, 32_000, max_position_embeddings=32_768,
            model_type="mistral",
        ),
        # For smoke tests.
        Shape("tiny", 64, 128, 2, 4, 2, 512),
    )
}  # fmt: skip


def shape_named(name: str) -> Shape:
    """
    The shape called *name*.

    Raises:
        ValueError: No shape has that name.
    """
    if name not in SHAPES:
        raise ValueError(f"'shape' must be one of {', '.join(SHAPES)}: got {name!r}")
    return SHAPES[name]


def add_scaling(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that scale a shape down."""
    add = parser.add_argument
    add("--layers", type=int, metavar="N", help="number of layers: figures are then not of the full shape")
    add("--hidden-divisor", type=int, metavar="N", help="divides width and heads: likewise")
