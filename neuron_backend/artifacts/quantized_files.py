"""
Saving and loading the weights of a quantised model.

transformers could write them but not read them. Their file has a name that transformers does not look
for, so that loading the folder fails there instead of initialising random weights.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..quantization.int8_linear import Int8Linear
from ..quantization.quantized import replace_empty
from .manifest import QUANTIZED_WEIGHTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_GENERATION = "generation_config.json"


def save_quantized(model: "PreTrainedModel", folder: Path) -> None:
    """Write the config, generation config and weights of *model* to *folder*."""
    config = copy.copy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    # A shared matrix is written once: loading ties it again. A shared vector by each name, since a bias may
    # be shared where matrices are not.
    first: dict[int, str] = {}
    written, state = {}, model.state_dict()
    for name, tensor in state.items():
        if first.setdefault(tensor.data_ptr(), name) == name:
            # Rows of a fused tensor are written without the others. No copies: all would be the model again.
            written[name] = tensor.contiguous()
        elif tensor.dim() == 1:
            written[name] = tensor.clone()
    save_file(written, folder / QUANTIZED_WEIGHTS)


def load_quantized(
    folder: Path, layers: Mapping[str, str], dtype: torch.dtype, attention: str
) -> "PreTrainedModel":
    """
    Load the quantised model of a saved decoder, without the buffers that are computed from its config.

    Args:
        folder: The saved decoder.

        layers: Name of each quantised layer to its format.

        dtype: Dtype of the other weights.

        attention: The attention implementation.

    Raises:
        ValueError: The stored weights are not the model's.
    """
    return assemble_model(folder, layers, dtype, attention, load_file(folder / QUANTIZED_WEIGHTS))


def assemble_model(
    folder: Path,
    layers: Mapping[str, str],
    dtype: torch.dtype,
    attention: str,
    stored: Mapping[str, Tensor],
) -> "PreTrainedModel":
    """As :func:`load_quantized`, with the weights *stored* in place of those in *folder*."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )
        replace_empty(model, layers, dtype)
        for name in layers:
            layer = model.get_submodule(name)
            if isinstance(layer, Int8Linear) and f"{name}.quantized" in stored:
                layer.arrange(in_blocks=stored[f"{name}.quantized"].dim() > 2)
    found = model.load_state_dict(dict(stored), strict=False, assign=True)
    model.tie_weights()
    if found.unexpected_keys:
        raise ValueError(f"a saved decoder must hold the model's weights: got {found.unexpected_keys[0]}")
    missing = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    if missing:
        raise ValueError(f"a saved decoder must hold every weight of the model: got no {missing[0]}")
    if (folder / _GENERATION).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model
