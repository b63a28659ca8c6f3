"""
What compiled programs need to know of a model, so that loading does not build it.

Building a model imports the model library, which takes longer than the rest of a load. Compiled
programs need no modules: they take tensors by name.
"""

from collections.abc import Mapping

import attrs
import torch

from ..kv_cache.geometry import Geometry, LayerGeometry
from ..models.weights import weight_dtype
from .stored_weights import TensorEntry

KINDS = ("weight", "quantized", "scale", "bias")
"""Tensors of a linear layer."""


@attrs.frozen
class Blueprint:
    """A decoder's model without its shape and tensors."""

    architecture: str
    masks: str
    """Text form of the mask plan."""

    cache_dtype: str
    layers: list[list[int]]
    """Of each layer: key heads, key size, value heads, value size."""

    ties: dict[str, str]
    """Name of each tied weight that is not stored to that of the stored one."""

    fused: list[list[str]]
    """Names of the layers of each fused projection, in the order in which programs number them."""

    def geometry(self, vocab_size: int) -> Geometry:
        """
        Geometry of cache and logits.

        Raises:
            ValueError: A layer has not four sizes of at least 1.
        """
        if not self.layers or any(len(layer) != 4 or min(layer) < 1 for layer in self.layers):
            raise ValueError(f"a layer must have four sizes, each at least 1: got {self.layers}")
        return Geometry(
            architecture=self.architecture,
            layers=tuple(LayerGeometry(*layer) for layer in self.layers),
            vocab_size=vocab_size,
            cache_dtype=weight_dtype(self.cache_dtype) or torch.get_default_dtype(),
        )

    def groups(self, stored: Mapping[str, TensorEntry]) -> dict[str, list[str]]:
        """Program name of each fused projection's tensor to the stored names of its parts."""
        return {
            f"fused.{index}.layer.{kind}": [f"{name}.{kind}" for name in names]
            for index, names in enumerate(self.fused)
            for kind in KINDS
            if names and f"{names[0]}.{kind}" in stored
        }
