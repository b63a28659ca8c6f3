"""What a compiled program fits."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from ...decoding.protocols import DecoderShape
from ..parallel.tensor_parallel import ranks_of
from ..step import Step
from ..weights import derived_buffers, dtype_name

# AOTInductor writes vectors of up to 8 numbers into the code.
_FOLDED = 8


def program_fingerprint(
    step: Step, shape: DecoderShape, width: int, spans: Sequence[int], reserved: int
) -> str:
    """
    A digest of everything on which a program of that *width* relies without checking it.

    A program that is run over other shapes, dtypes or weights than it was compiled for writes
    where it should not.
    """
    ranks = ranks_of(step.model)
    facts = {
        "architecture": type(step.model).__name__,
        "shape": attrs.asdict(shape),
        "kind": step.kind,
        "width": width,
        "spans": list(spans),
        "reserved": reserved,
        "masks": repr(step.plan),
        "torch": torch.__version__,
        # The order in which torch's kernels pack weights depends on it.
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "weights": weight_table(step),
        "ranks": ranks and ranks.degree,
        # The compiler may fold small tensors into the code, so their values count.
        "buffers": {name: _digest(tensor) for name, tensor in derived_buffers(step.model).items()},
        "folded": {
            name: _digest(tensor)
            for name, tensor in step.model.state_dict().items()
            if tensor.numel() <= _FOLDED
        },
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def weight_table(step: Step) -> dict[str, list[Any]]:
    """Name of each weight to its dtype and shape."""
    return {
        name: [dtype_name(tensor.dtype), *tensor.shape] for name, tensor in step.model.state_dict().items()
    }


def _digest(tensor: Tensor) -> str:
    # numpy knows no bfloat16; every float fits into float64.
    wide = tensor.double() if tensor.is_floating_point() else tensor
    return hashlib.sha256(wide.contiguous().numpy().tobytes()).hexdigest()
