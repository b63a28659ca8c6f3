"""
What programs ask of a model, so that a saved one need not be built.

To build a model takes the model library, which takes longer to import than everything else that a
load does. Compiled programs know nothing of modules: they take tensors by name.
"""

from collections.abc import Mapping

import attrs
import torch

from ..kv_cache.geometry import Geometry, LayerGeometry
from ..models.weights import weight_dtype
from .stored_weights import Entry

KINDS = ("weight", "quantized", "scale", "bias")
"""Tensors of a linear layer."""


@attrs.frozen
class Blueprint:
    """A decoder, but for its shape and its tensors."""

    architecture: str
    masks: str
    """What the masks look like, in words."""

    cache_dtype: str
    layers: list[list[int]]
    """Of each layer: key heads, key numbers, value heads, value numbers."""

    ties: dict[str, str]
    """Name of each weight that is not stored to the one that it is."""

    fused: list[list[str]]
    """Names of the layers that multiply as one, in the order in which programs count them."""

    def geometry(self, vocab_size: int) -> Geometry:
        """Of cache and logits."""
        return Geometry(
            architecture=self.architecture,
            layers=tuple(LayerGeometry(*layer) for layer in self.layers),
            vocab_size=vocab_size,
            cache_dtype=weight_dtype(self.cache_dtype) or torch.get_default_dtype(),
        )

    def groups(self, stored: Mapping[str, Entry]) -> dict[str, list[str]]:
        """What programs call the tensors of layers that multiply as one, to the names that are stored."""
        return {
            f"fused.{index}.layer.{kind}": [f"{name}.{kind}" for name in names]
            for index, names in enumerate(self.fused)
            for kind in KINDS
            if f"{names[0]}.{kind}" in stored
        }
