"""
Weights that transformers keeps in float32 when it loads a model in another dtype.

A router's score correction bias is such a weight: rounded, it chooses other experts. A model lists most of
them by name, and builds some in float32 whatever dtype it is built in.
"""

import copy
import re
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_HALVES = (torch.float16, torch.bfloat16)


def kept_in_float32(model: "PreTrainedModel", dtype: torch.dtype) -> frozenset[str]:
    """Names of *model*'s tensors that ``from_pretrained(dtype=dtype)`` loads, or computes, in float32."""
    if dtype == torch.float32:
        return frozenset()
    built = _built_in_float32(model, dtype)
    named = (*model.named_parameters(), *model.named_buffers())
    return frozenset(name for name, _ in named if name in built or _is_listed(model, name, dtype))


def _is_listed(model: "PreTrainedModel", name: str, dtype: torch.dtype) -> bool:
    strict = model._keep_in_fp32_modules_strict if dtype in _HALVES else None
    # A model of bfloat16 overflows in float16 only.
    loose = model._keep_in_fp32_modules if dtype == torch.float16 else None
    return any(_matches(pattern, name) for pattern in (*(strict or ()), *(loose or ())))


def _matches(pattern: str, name: str) -> bool:
    """Whether *pattern*, in which ``*`` stands for any text, is in *name*, as transformers 5 searches it."""
    return re.search(pattern.replace("*", ".*"), name) is not None


def _built_in_float32(model: "PreTrainedModel", dtype: torch.dtype) -> set[str]:
    config = copy.deepcopy(model.config)
    try:
        with torch.device("meta"):
            built = type(model)._from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    except Exception:
        # A class that its config alone does not build cannot be loaded by transformers either.
        return set()
    named = (*built.named_parameters(), *built.named_buffers())
    return {name for name, tensor in named if tensor.dtype == torch.float32}
