"""Loading the model of a saved decoder, or a stock model, from a folder."""

from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from ..artifacts.file_hashes import check_files
from ..artifacts.fingerprint import weight_table
from ..artifacts.manifest import BUFFERS, CONSTANTS, NAME, PLAIN_WEIGHTS, Manifest
from ..artifacts.quantized_files import assemble_model, load_quantized
from ..artifacts.versions import check_transformers
from ..models.fused_projections import fuse_projections
from ..models.gguf_file import is_gguf, load_gguf_model
from ..models.model_source import not_found_by_name, without_remote_code
from ..models.rope_scaling import fix_rope_scaling
from ..models.unsupported import require_weights
from ..models.weights import align, copy_sharing_weights, dtype_name, weight_dtype
from ..models.without_bars import without_bars
from ..quantization.int8_linear import Int8Linear
from ..tensor_parallel.ranks import Ranks
from ..tensor_parallel.sharded_model import load_shard

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@without_bars()
def load_model(path: str | PathLike[str], dtype: torch.dtype | None) -> "PreTrainedModel":
    """
    Load the model in a folder, a GGUF file or a hub repository, or that of a quantised saved decoder.

    Args:
        path: A path or hub id that :func:`~..models.model_source.check_model` accepts.

        dtype: None: the checkpoint's own.

    Raises:
        FileNotFoundError: There is no such folder, and no such repository on the hub.

        ValueError: Files of a saved decoder do not match what was saved, or a model needs code of its own.

        OSError: A file of weights is damaged.

        UnsupportedArchitecture: transformers does not read the GGUF file, or the files lack weights.
    """
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel
    folder = Path(path)
    if is_gguf(path) and folder.is_file():
        return load_gguf_model(folder, dtype)
    if (folder / NAME).is_file() and (manifest := Manifest.read(folder)).quantized:
        check_transformers(manifest)
        check_files(folder, manifest.files)
        model = saved_model(folder, manifest, load_file(folder / CONSTANTS), None)
        # Targets but the CPU take rows.
        for layer in model.modules():
            if isinstance(layer, Int8Linear):
                layer.arrange(in_blocks=False)
        return model
    try:
        with not_found_by_name(path, "'model'"), without_remote_code(path):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(path), dtype=dtype or "auto", trust_remote_code=False, output_loading_info=True
            )
    except SafetensorError as error:
        raise OSError(
            f"the weights of {str(path)!r} cannot be read: {error} (a download that was interrupted, or a "
            "pointer of git-lfs in place of the file)"
        ) from error
    model = loaded[0]
    require_weights(type(model).__name__, path, loaded[1]["missing_keys"])
    return model


@without_bars()
def saved_model(
    folder: Path, manifest: Manifest, stored: Mapping[str, Tensor], ranks: Ranks | None
) -> "PreTrainedModel":
    """
    Load the model of the saved decoder in *folder*, whose file hashes have been checked.

    Args:
        folder: The saved decoder.

        manifest: Its manifest.

        stored: The tensors of :data:`~..artifacts.manifest.CONSTANTS`.

        ranks: The ranks that share the model; None if it stays whole.
    """
    if manifest.quantized:
        dtype = weight_dtype(manifest.dtype) or torch.get_default_dtype()
        model = load_quantized(folder, manifest.quantized, dtype, manifest.attention)
    else:
        from transformers import AutoModelForCausalLM

        load = partial(
            AutoModelForCausalLM.from_pretrained,
            dtype=weight_dtype(manifest.dtype),
            attn_implementation=manifest.attention,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
        model = load_shard(folder, load, ranks)
        _restore_dtypes(model, folder, manifest)
    _check_class(model)
    model = copy_sharing_weights(model)
    align(model)
    found = {name: tensor for name, tensor in stored.items() if name.startswith(BUFFERS)}
    set_buffers(model, {name.removeprefix(BUFFERS): tensor for name, tensor in found.items()})
    return model


def _check_class(model: "PreTrainedModel") -> None:
    """
    Refuse a *model* of another class than the saved one's.

    Raises:
        ValueError: transformers makes another of its config, which names the class: a subclass of the user's,
            or one of code of its own.
    """
    saved, made = model.config.architectures or (), type(model).__name__
    if saved and made not in saved:
        raise ValueError(
            f"a saved decoder's model must be of the class that transformers makes of its config, {made}, "
            f"which may compute something else: got {saved[0]}. Compile the model again"
        )


def _restore_dtypes(model: "PreTrainedModel", folder: Path, manifest: Manifest) -> None:
    """Read again what transformers has loaded in another dtype than it was saved in."""
    state = model.state_dict(keep_vars=True)
    found = weight_table(state)
    # Such as a router's bias: float32 when loaded, and bfloat16 in a model converted by ``to()``.
    other = {name for name in state if found[name] != manifest.weights.get(name)}
    if not other:
        return
    with safe_open(folder / PLAIN_WEIGHTS, "pt") as file:
        in_file = set(file.keys())
        for name in other & in_file:
            stored = file.get_tensor(name)
            if weight_table({name: stored})[name] == manifest.weights.get(name):
                state[name].data = stored
    # transformers saves some under another name. What it loads in float32 from 16 bits has the same numbers.
    for name in other - in_file:
        dtype, *shape = manifest.weights.get(name, [""])
        if found[name] == ["float32", *shape] and dtype in ("bfloat16", "float16"):
            state[name].data = state[name].data.to(weight_dtype(dtype))


def build_model(
    folder: Path, manifest: Manifest, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> "PreTrainedModel":
    """
    Build the model of a decoder that was loaded without one, over the same tensors.

    Args:
        folder: Folder of its configs.

        manifest: Its manifest.

        weights: The stored weights, by name.

        buffers: The buffers that are computed from the config.
    """
    dtype = weight_dtype(manifest.dtype) or torch.get_default_dtype()
    model = copy_sharing_weights(
        assemble_model(folder, manifest.quantized, dtype, manifest.attention, weights)
    )
    set_buffers(model, buffers)
    fix_rope_scaling(model, manifest.shape.max_length)
    # The tensors are contiguous already, so nothing is copied.
    fuse_projections(model)
    return model


def set_buffers(model: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Replace buffers of *model* that are computed from its config."""
    for name, tensor in buffers.items():
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner).register_buffer(leaf, tensor, persistent=False)


def check_weights(weights: Mapping[str, Tensor], manifest: Manifest) -> None:
    """
    Check a model's state dict against the manifest.

    Raises:
        ValueError: A weight has another dtype or shape, is missing, or is not one of the model's.
    """
    # Dtypes included: a weight of another dtype than the model's is converted when it is loaded.
    found = weight_table(weights)
    different = {
        name for name in {*found, *manifest.weights} if found.get(name) != manifest.weights.get(name)
    }
    if different:
        name = min(different)
        raise ValueError(f"weight {name} must be {manifest.weights.get(name)}: got {found.get(name)}")


def check_dtype(weights: Mapping[str, Tensor], manifest: Manifest) -> None:
    """
    Check that some of *weights* have the dtype that was saved.

    Raises:
        ValueError: None has it.
    """
    found = sorted({dtype_name(tensor.dtype) for tensor in weights.values() if tensor.is_floating_point()})
    if manifest.dtype not in found:
        raise ValueError(f"dtype must be that of the weights, {' or '.join(found)}: got {manifest.dtype}")
