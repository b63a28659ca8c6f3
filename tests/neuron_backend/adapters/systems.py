"""Wrapped decoders over stand-ins of the systems, by name, and the reference model."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.decoding.protocols import DecoderShape
from decodekit.neuron_backend import (
    CallableDecoder,
    NxDInferenceDecoder,
    OptimumNeuronDecoder,
    TransformersNeuronxDecoder,
)
from decodekit.neuron_backend.adapters import WrappedDecoder

from .kv_model import KvModel, require_ints, require_shape
from .nxd_stand_in import NxDModel
from .optimum_stand_in import MaskedOptimumModel, OptimumModel
from .tnx_stand_in import TnxModel

BATCH, LENGTH = 3, 48


def nxd(**options: object) -> Callable[[PreTrainedModel], WrappedDecoder]:
    return lambda model: NxDInferenceDecoder(NxDModel(model, **options))


def optimum(**options: object) -> Callable[[PreTrainedModel], WrappedDecoder]:
    return lambda model: OptimumNeuronDecoder(OptimumModel(model, **options))


def tnx(layout: str, **options: object) -> Callable[[PreTrainedModel], WrappedDecoder]:
    return lambda model: TransformersNeuronxDecoder(TnxModel(model, layout, **options))


class Programs:
    """A user's fixed programs, for CallableDecoder."""

    def __init__(self, model: PreTrainedModel, shape: DecoderShape, dtype: torch.dtype, shared: bool):
        self.device = KvModel(model, shape.batch_size, shape.max_length)
        self.shape, self.dtype, self.shared = shape, dtype, shared
        self.routed: list[str] = []

    def step(self, ids: Tensor, positions: Tensor) -> Tensor:
        batch, width = self.shape.batch_size, ids.shape[1]
        require_ints(self.dtype, ids=ids, positions=positions)
        assert width in self.shape.widths
        self.routed.append(f"step {width}")
        if self.shared:
            require_shape("positions", positions, width)
            positions = positions.expand(batch, -1)
        require_shape("ids", ids, batch, width)
        require_shape("positions", positions, batch, width)
        before = torch.arange(self.shape.max_length) < positions[:, :1]
        logits = self.device.columns(ids, positions, before, list(range(batch)))
        return logits if width <= self.shape.scored_width else logits[:, -1:]

    def prefill(self, ids: Tensor, lengths: Tensor) -> Tensor:
        batch, width = self.shape.batch_size, self.shape.widths[-1]
        require_ints(self.dtype, ids=ids, lengths=lengths)
        require_shape("ids", ids, batch, width)
        self.routed.append("prefill")
        logits = self.device.encode(ids, torch.arange(width).expand(batch, -1))
        self.device.fill(slice(None))
        return logits[torch.arange(batch), lengths.long() - 1]


def programs(
    widths: tuple[int, ...],
    scored: int,
    prefill: bool = False,
    dtype: torch.dtype = torch.int64,
    shared: bool = False,
) -> Callable[[PreTrainedModel], WrappedDecoder]:
    def build(model: PreTrainedModel) -> WrappedDecoder:
        shape = DecoderShape(BATCH, LENGTH, model.config.vocab_size, widths, scored)
        own = Programs(model, shape, dtype, shared)
        return CallableDecoder(
            own.step,
            shape,
            prefill=own.prefill if prefill else None,
            per_row_positions=not shared,
            dtype=dtype,
        )

    return build


SYSTEMS: dict[str, Callable[[PreTrainedModel], WrappedDecoder]] = {
    "nxd": nxd(),
    "nxd that verifies": nxd(speculation_length=5),
    "nxd that verifies before 2.22": nxd(speculation_length=5, before_2_22=True),
    "nxd that samples": nxd(on_device_sampling_config=object(), output_logits=True, speculation_length=3),
    "nxd of one batch": nxd(speculation_length=5, is_continuous_batching=False),
    "nxd of long prompts": nxd(max_context_length=48, context_buckets=(8, 16, 48), speculation_length=4),
    "optimum": optimum(),
    "optimum that verifies": optimum(speculation_length=5),
    "optimum of one batch": optimum(speculation_length=5, continuous_batching=False),
    "optimum in chunks": optimum(prefill_chunk_size=7),
    "optimum in chunks of one batch": optimum(prefill_chunk_size=7, continuous_batching=False),
    "optimum that samples": optimum(on_device_sampling=True, output_logits=True),
    "optimum of two outputs": optimum(output_logits=True, speculation_length=3),
    "optimum in chunks of two outputs": optimum(prefill_chunk_size=7, output_logits=True),
    "optimum of earlier versions": lambda model: OptimumNeuronDecoder(
        MaskedOptimumModel(model, speculation_length=4)
    ),
    "tnx at one position": tnx("1-D", speculation_length=5),
    "tnx at many positions": tnx("2-D", speculation_length=5),
    "tnx row by row": tnx("continuous"),
    "tnx without prefill": tnx("2-D", context_buckets=(), speculation_length=3),
    "callable": programs((1, 5, 16), 5),
    "callable at one position": programs((1, 4, 16), 4, shared=True),
    "callable with a prefill": programs((1, 5, 24), 5, prefill=True, dtype=torch.int32),
    "callable of one token": programs((1,), 1),
}
"""By name, over a float64 model: rows 3, positions 48."""

VERIFYING = [
    name
    for name in SYSTEMS
    if name not in ("nxd", "optimum", "optimum that samples", "callable of one token")
]
VERIFYING = [name for name in VERIFYING if "chunks" not in name and name != "tnx row by row"]


class Reference:
    """The stock model, run over whole prefixes."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.after = functools.lru_cache(maxsize=None)(self._after)

    @torch.no_grad()
    def _after(self, prefix: tuple[int, ...]) -> Tensor:
        """Logits ``[vocab]`` after *prefix*."""
        return self.model(torch.tensor([prefix])).logits[0, -1].float()
