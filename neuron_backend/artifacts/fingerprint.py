"""Fingerprint of what a compiled program relies on: model, shapes, dtypes and torch version."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from ...decoding.protocols import DecoderShape
from ..kv_cache.buffers import CacheBuffers
from ..models.fused_projections import fused_projection_names
from ..models.weights import derived_buffers, dtype_name
from ..step import DecoderStep
from ..tensor_parallel.sharding import ranks_of

# AOTInductor folds vectors of up to 8 numbers into the code.
_FOLDED = 8


@attrs.frozen
class ModelFingerprint:
    """The facts of a model that its programs rely on."""

    architecture: str
    masks: str
    degree: int | None
    """Number of ranks if the model is divided, else None."""

    weights: dict[str, list[Any]]
    """As :func:`weight_table`."""

    ties: dict[str, str]
    """Name of each weight to that of the one whose memory it shares."""

    fused: list[list[str]]
    """Names of the layers of each fused projection, in the order of their rows."""

    buffers: dict[str, str]
    """Digests of buffers computed from the config, which the compiler may fold into the code."""

    folded: dict[str, str]
    """Digests of the weights that the compiler may fold into the code."""

    @classmethod
    def of(cls, step: DecoderStep) -> "ModelFingerprint":
        """Fingerprint of the model of *step*."""
        ranks, state = ranks_of(step.model), step.model.state_dict()
        name, masks = type(step.model).__name__, repr(step.plan)
        degree, fused = None if ranks is None else ranks.degree, fused_projection_names(step.model)
        return cls.of_tensors(name, masks, state, derived_buffers(step.model), fused, degree)

    @classmethod
    def of_tensors(
        cls,
        architecture: str,
        masks: str,
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        fused: Sequence[Sequence[str]],
        degree: int | None = None,
    ) -> "ModelFingerprint":
        """
        Fingerprint of a model with those tensors.

        Args:
            architecture: Name of its class.

            masks: Text form of its mask plan.

            weights: Its state dict.

            buffers: The buffers outside it.

            fused: Names of the layers of each fused projection.

            degree: Number of ranks if it is divided.
        """
        return cls(
            architecture,
            masks,
            degree,
            weight_table(weights),
            _ties(weights),
            [list(names) for names in fused],
            {name: _digest(tensor) for name, tensor in buffers.items()},
            {name: _digest(tensor) for name, tensor in weights.items() if tensor.numel() <= _FOLDED},
        )


def program_fingerprint(
    model: ModelFingerprint,
    kind: str,
    shape: DecoderShape,
    width: int,
    spans: Sequence[int],
    cache: CacheBuffers,
    of_host: str | None = None,
) -> str:
    """
    Digest of everything a program of that *kind* and *width* relies on without checking it.

    A program run with other shapes, dtypes or weights than it was compiled for writes out of bounds.

    Args:
        model: Fingerprint of the model.

        kind: Of its step.

        shape: Of the decoder.

        width: Columns of the program.

        spans: Of the decoder.

        cache: The buffers that it writes.

        of_host: What else it takes from the host that compiled it; None of a program for a device.
    """
    facts = {
        "model": attrs.asdict(model),
        "shape": attrs.asdict(shape),
        "kind": kind,
        "width": width,
        "spans": list(spans),
        "reserved": cache.reserved,
        "cache": [[dtype_name(tensor.dtype), *tensor.shape] for tensor in cache.tensors],
        "torch": torch.__version__,
        **({} if of_host is None else {"kernels": of_host}),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def weight_table(weights: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Name of each of *weights* (a state dict) to its dtype and shape."""
    return {name: [dtype_name(tensor.dtype), *tensor.shape] for name, tensor in weights.items()}


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Digest of names, dtypes, shapes and contents."""
    digests = {name: _digest(tensor) for name, tensor in tensors.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def _ties(weights: Mapping[str, Tensor]) -> dict[str, str]:
    first: dict[tuple[object, ...], str] = {}
    owners = {
        name: first.setdefault((weights[name].data_ptr(), weights[name].dtype, *weights[name].shape), name)
        for name in sorted(weights)
    }
    return {name: owner for name, owner in owners.items() if owner != name}


def _digest(tensor: Tensor) -> str:
    facts = f"{dtype_name(tensor.dtype)} {list(tensor.shape)} ".encode()
    # As bytes, since numpy has no bfloat16.
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(facts + content.tobytes()).hexdigest()
