"""Copies of a model that share its weights, and the dtypes of weights."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from .kept_dtypes import kept_in_float32

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}

# Bytes: what torch's own allocator gives on the host.
_ALIGNMENT = 64

Model = TypeVar("Model", bound="PreTrainedModel")


def weight_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """
    Resolve a torch dtype or its name; None stays None.

    Raises:
        ValueError: The dtype is not supported for weights.
    """
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in _DTYPES.values()):
        return dtype
    if isinstance(dtype, str) and dtype.removeprefix("torch.") in _DTYPES:
        return _DTYPES[dtype.removeprefix("torch.")]
    raise ValueError(f"'dtype' must be one of {', '.join(_DTYPES)}: got {dtype!r}")


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a dtype: ``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def copy_sharing_weights(model: Model, dtype: torch.dtype | None = None) -> Model:
    """
    A copy of *model* in evaluation mode over the same weights, adapted to a position-addressed cache.

    Modules and config are copied: *model* is not modified, and later changes to it have no effect on the
    copy. Tensors are shared unless *dtype* differs from theirs. Non-persistent buffers, such as RoPE
    frequencies, keep their dtype, and what transformers keeps in float32 (:mod:`.kept_dtypes`) is float32,
    as when a model is loaded in another dtype. Floating tensors of 8 bits are the codes of a quantised
    weight, whose scales belong to them, and stay.
    """
    # Its imports take seconds.
    from .adaptation import adapt

    derived = derived_buffers(model)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    wanted = {} if dtype is None else _wanted_dtypes(model, tensors, dtype)
    # deepcopy takes what is in its memo as already copied.
    memo = {
        id(tensor): tensor if name in derived else _converted(tensor, wanted.get(name))
        for name, tensor in tensors.items()
    }
    twin: Model = copy.deepcopy(model, memo)
    twin.train(False)
    if dtype is not None:
        twin.config.dtype = dtype
    _choose_experts(twin)
    _describe(twin)
    adapt(twin)
    return twin


def _choose_experts(model: "PreTrainedModel") -> None:
    # The grouped matmul that mixtures of experts use by default has no float64. transformers before 5 has
    # one implementation only.
    if model.dtype == torch.float64 and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")


def _describe(model: "PreTrainedModel") -> None:
    """Correct what the config says otherwise than the model is, since a saved one is made of it."""
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    embeddings: Any = model.get_input_embeddings()
    weight = getattr(head, "weight", None)
    for config in (model.config, model.config.get_text_config()):
        if weight is not None and hasattr(config, "tie_word_embeddings"):
            config.tie_word_embeddings = weight is getattr(embeddings, "weight", None)
        # A loss of training, for which masks would have to have two dimensions.
        if getattr(config, "output_router_logits", False):
            config.output_router_logits = False


def _wanted_dtypes(
    model: "PreTrainedModel", tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, torch.dtype]:
    """Dtype of each of *tensors* that a conversion to *dtype* is about, by name."""
    kept = kept_in_float32(model, dtype)
    return {
        name: torch.float32 if name in kept else dtype
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and tensor.itemsize > 1
    }


def _converted(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    wanted = tensor.dtype if dtype is None else dtype
    if wanted == tensor.dtype and tensor.is_contiguous():
        return tensor
    # Compiled programs assume the contiguous strides that a loaded weight has.
    return as_before(tensor, tensor.detach().to(wanted).contiguous())


def as_before(tensor: Tensor, values: Tensor) -> Tensor:
    """*values*, as a parameter if *tensor* is one."""
    return nn.Parameter(values, requires_grad=False) if isinstance(tensor, nn.Parameter) else values


def align(model: nn.Module) -> None:
    """
    Copy the tensors of *model* that torch did not allocate, such as those of a memory-mapped file.

    MKL's kernels add in another order if weights are not aligned to 16 bytes, so equal weights would give
    other bits after loading from a file. A compiled float32 program over a memory-mapped file has crashed.
    """
    copies: dict[int, Tensor] = {}
    tensors = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    for path, tensor in tensors:
        if tensor.untyped_storage().data_ptr() % _ALIGNMENT:
            owner, _, leaf = path.rpartition(".")
            # Tied weights stay tied.
            if id(tensor) not in copies:
                fresh = as_before(tensor, tensor.detach().clone())
                # torch's matmul folds dimensions, and so rounds, by this flag, even without gradients.
                copies[id(tensor)] = fresh.requires_grad_(tensor.requires_grad)
            setattr(model.get_submodule(owner), leaf, copies[id(tensor)])


def storages_of(model: nn.Module) -> frozenset[int]:
    """The addresses of the memory of *model*'s parameters and buffers."""
    tensors = (*model.parameters(), *model.buffers())
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)


def count_weights(model: nn.Module) -> int:
    """Numbers in *model*'s parameters and buffers, such as quantised weights; a tied one counts once."""
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))


def derived_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Non-persistent buffers, which the model computes from its config, by name."""
    saved = model.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}
