"""What a compiled program fits."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from ...decoding.protocols import DecoderShape
from ..kv_cache.buffers import CacheBuffers
from ..models.weights import derived_buffers, dtype_name
from ..step import DecoderStep
from ..tensor_parallel.sharded_model import ranks_of

# AOTInductor writes vectors of up to 8 numbers into the code.
_FOLDED = 8


@attrs.frozen
class Fitted:
    """What of a model its programs rely on."""

    architecture: str
    masks: str
    degree: int | None
    """How many ranks there are, if the model is divided."""

    weights: dict[str, list[Any]]
    """As :func:`weight_table`."""

    buffers: dict[str, str]
    """Digests of those that a model makes from its config: the compiler may fold them into the code."""

    folded: dict[str, str]
    """Digests of the weights that it may fold."""

    @classmethod
    def of(cls, step: DecoderStep) -> "Fitted":
        """The model of *step*."""
        ranks, state = ranks_of(step.model), step.model.state_dict()
        name, masks = type(step.model).__name__, repr(step.plan)
        degree = None if ranks is None else ranks.degree
        return cls.stored(name, masks, state, derived_buffers(step.model), degree)

    @classmethod
    def stored(
        cls,
        architecture: str,
        masks: str,
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        degree: int | None = None,
    ) -> "Fitted":
        """A model of those tensors: its state dict, and the buffers that are not part of that."""
        return cls(
            architecture,
            masks,
            degree,
            weight_table(weights),
            {name: _digest(tensor) for name, tensor in buffers.items()},
            {name: _digest(tensor) for name, tensor in weights.items() if tensor.numel() <= _FOLDED},
        )


def program_fingerprint(
    fitted: Fitted, kind: str, shape: DecoderShape, width: int, spans: Sequence[int], cache: CacheBuffers
) -> str:
    """
    A digest of everything on which a program of that *kind* and *width* relies without checking it.

    A program that is run over other shapes, dtypes or weights than it was compiled for writes
    where it should not.
    """
    facts = {
        "model": attrs.asdict(fitted),
        "shape": attrs.asdict(shape),
        "kind": kind,
        "width": width,
        "spans": list(spans),
        "reserved": cache.reserved,
        "cache": [[dtype_name(tensor.dtype), *tensor.shape] for tensor in cache.tensors],
        "torch": torch.__version__,
        # The order in which torch's kernels pack weights depends on it.
        "kernels": torch.backends.cpu.get_cpu_capability(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def weight_table(weights: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Name of each of *weights*, a state dict, to its dtype and shape."""
    return {name: [dtype_name(tensor.dtype), *tensor.shape] for name, tensor in weights.items()}


def _digest(tensor: Tensor) -> str:
    # numpy knows no bfloat16; every float fits into float64.
    wide = tensor.double() if tensor.is_floating_point() else tensor
    return hashlib.sha256(wide.contiguous().numpy().tobytes()).hexdigest()
