"""The model of a saved decoder."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..architectures.rotation import fix_rotation
from ..targets.joined_projections import join_projections
from ..weights import adopt, dtype_name, weight_dtype
from .fingerprint import weight_table
from .manifest import Manifest
from .quantized_files import assembled

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def build_model(
    folder: Path, manifest: Manifest, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> "PreTrainedModel":
    """
    The model that programs without one were compiled from, over the same tensors.

    Args:
        folder: Where its configs are.

        manifest: How it was saved.

        weights: As they are stored, by name.

        buffers: Those that are made from the config.
    """
    dtype = weight_dtype(manifest.dtype) or torch.get_default_dtype()
    model = adopt(assembled(folder, manifest.quantized, dtype, manifest.attention, weights))
    set_buffers(model, buffers)
    fix_rotation(model, manifest.shape.max_length)
    # They lie so already: nothing is copied.
    join_projections(model)
    return model


def set_buffers(model: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Replace buffers of *model* that are made from its config."""
    for name, tensor in buffers.items():
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner).register_buffer(leaf, tensor, persistent=False)


def check_weights(weights: Mapping[str, Tensor], manifest: Manifest) -> None:
    """
    Compare the state dict of a model with what was saved.

    Raises:
        ValueError: A weight is of another dtype or shape, or missing, or none of the model's.
    """
    # A weight of another dtype than the model's own does not come back as it was.
    found = weight_table(weights)
    different = {
        name for name in {*found, *manifest.weights} if found.get(name) != manifest.weights.get(name)
    }
    if different:
        name = min(different)
        raise ValueError(f"weight {name} must be {manifest.weights.get(name)}: got {found.get(name)}")


def check_dtype(weights: Mapping[str, Tensor], manifest: Manifest) -> None:
    """
    Compare the dtype that was saved with those of *weights*.

    Raises:
        ValueError: None of them has it.
    """
    found = sorted({dtype_name(tensor.dtype) for tensor in weights.values() if tensor.is_floating_point()})
    if manifest.dtype not in found:
        raise ValueError(f"dtype must be that of the weights, {' or '.join(found)}: got {manifest.dtype}")
