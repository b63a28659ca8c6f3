"""
The weights of a quantised model in a saved decoder.

transformers could write them but not read them, so they are not where it looks: a folder that it
cannot load, rather than one that it fills up with random weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..quantization.quantized import replace_empty

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS = "weights.safetensors"
_GENERATION = "generation_config.json"


def save_quantized(model: "PreTrainedModel", folder: Path) -> None:
    """Write config, generation config and weights of *model* into *folder*."""
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    # A tensor that two layers share is written once; the model ties it again.
    first: dict[int, str] = {}
    state = model.state_dict()
    for name, tensor in state.items():
        first.setdefault(tensor.data_ptr(), name)
    # Rows of a joined tensor are written without the others.
    save_file({name: state[name].clone() for name in first.values()}, folder / WEIGHTS)


def load_quantized(
    folder: Path, layers: Mapping[str, str], dtype: torch.dtype, attention: str
) -> "PreTrainedModel":
    """
    The model of a saved decoder; buffers that are made from its config are still to be set.

    Args:
        folder: Of the decoder.

        layers: Which are quantised, and how.

        dtype: Of the other weights.

        attention: The attention implementation.

    Raises:
        ValueError: The files hold other weights than the model has.
    """
    return assembled(folder, layers, dtype, attention, load_file(folder / WEIGHTS))


def assembled(
    folder: Path,
    layers: Mapping[str, str],
    dtype: torch.dtype,
    attention: str,
    stored: Mapping[str, Tensor],
) -> "PreTrainedModel":
    """The same over the weights *stored*, whatever *folder* holds beside the configs."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )
        replace_empty(model, layers, dtype)
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
