"""
What programs ask of a model, so that a saved one need not be built.

To build a model takes the model library, which takes longer to import than everything else that a
load does. Compiled programs know nothing of modules: they take tensors by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from ..geometry import Geometry, LayerGeometry
from ..weights import dtype_name, weight_dtype
from .stored_weights import Entry, entries_of

if TYPE_CHECKING:
    from ..static_decoder import StaticDecoder

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

    joined: list[list[str]]
    """Names of the layers that multiply as one, in the order in which programs count them."""

    @classmethod
    def of(cls, decoder: "StaticDecoder", joined: list[list[str]], weights: Path) -> "Blueprint | None":
        """
        Of *decoder*, whose weights have been written into the file *weights*.

        None if they have other names or shapes there: some models store what they do not compute with.
        """
        ties = _ties(decoder.step.model.state_dict(), entries_of(weights))
        if ties is None:
            return None
        cache = decoder.cache
        return cls(
            architecture=type(decoder.step.model).__name__,
            masks=repr(decoder.step.plan),
            cache_dtype=dtype_name(cache.keys[0].dtype),
            layers=[
                [keys.shape[1], keys.shape[3], values.shape[1], values.shape[3]]
                for keys, values in zip(cache.keys, cache.values, strict=True)
            ],
            ties=ties,
            joined=joined,
        )

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
            f"joined.{index}.layer.{kind}": [f"{name}.{kind}" for name in names]
            for index, names in enumerate(self.joined)
            for kind in KINDS
            if f"{names[0]}.{kind}" in stored
        }


def _ties(state: Mapping[str, Tensor], stored: Mapping[str, Entry]) -> dict[str, str] | None:
    kinds = {name: (entry.dtype, entry.shape) for name, entry in stored.items()}
    first = {_place(state[name]): name for name in stored if name in state}
    ties = {name: first.get(_place(tensor)) for name, tensor in state.items() if name not in stored}
    same = set(stored) <= set(state) and None not in ties.values()
    if not same or any(kinds[name] != (state[name].dtype, tuple(state[name].shape)) for name in stored):
        return None
    return {name: found for name, found in ties.items() if found is not None}


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, *tensor.shape, *tensor.stride()
