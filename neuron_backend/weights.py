"""A model's weights, taken over without touching the model."""

import copy
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

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
    A torch dtype or its name to the dtype; None stays None.

    Raises:
        ValueError: It is none of the dtypes that weights may have.
    """
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in _DTYPES.values()):
        return dtype
    if isinstance(dtype, str) and dtype.removeprefix("torch.") in _DTYPES:
        return _DTYPES[dtype.removeprefix("torch.")]
    raise ValueError(f"'dtype' must be one of {', '.join(_DTYPES)}: got {dtype!r}")


def dtype_name(dtype: torch.dtype) -> str:
    """``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def adopt(model: Model, dtype: torch.dtype | None = None) -> Model:
    """
    A copy of *model* in evaluation mode over the same weights.

    The modules are copied, so neither mode nor configuration of *model* changes, and later
    changes of them do not arrive here. Its tensors are shared unless *dtype* asks for others.
    Buffers that are not saved with a model, such as rotary frequencies, keep their dtype:
    that is how a model loads in that dtype.
    """
    # What it is built on takes seconds to import.
    from .architectures.adaptation import adapt

    derived = derived_buffers(model)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    # Whatever deepcopy finds in its memo it takes as copied already.
    memo = {
        id(tensor): tensor if name in derived else _converted(tensor, dtype)
        for name, tensor in tensors.items()
    }
    twin: Model = copy.deepcopy(model, memo)
    twin.train(False)
    if dtype is not None:
        twin.config.dtype = dtype
    _choose_experts(twin)
    adapt(twin)
    return twin


def _choose_experts(model: "PreTrainedModel") -> None:
    # The grouped matrix product that mixtures of experts use by default knows no float64. Before
    # transformers 5 there was nothing to choose.
    if model.dtype == torch.float64 and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")


def _converted(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    if wanted == tensor.dtype and tensor.is_contiguous():
        return tensor
    # Compiled programs rely on the strides that a saved weight has when it is loaded again.
    return as_before(tensor, tensor.detach().to(wanted).contiguous())


def as_before(tensor: Tensor, values: Tensor) -> Tensor:
    """*values* as a parameter, if *tensor* is one."""
    return nn.Parameter(values, requires_grad=False) if isinstance(tensor, nn.Parameter) else values


def align(model: nn.Module) -> None:
    """
    Copy tensors of *model* that torch did not allocate, such as those of a mapped file.

    Kernels of MKL sum in another order where weights are not aligned to 16 bytes, so equal weights
    would give other bits once they are loaded from a file. A compiled float32 program over a mapped
    file has crashed.
    """
    copies: dict[int, Tensor] = {}
    tensors = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    for path, tensor in tensors:
        if tensor.untyped_storage().data_ptr() % _ALIGNMENT:
            owner, _, leaf = path.rpartition(".")
            # Tied weights stay so.
            if id(tensor) not in copies:
                copies[id(tensor)] = as_before(tensor, tensor.detach().clone())
            setattr(model.get_submodule(owner), leaf, copies[id(tensor)])


def derived_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that a state dict leaves out, because the model makes them from its config."""
    saved = model.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}
