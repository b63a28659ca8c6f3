"""
The real ``LlamaForSampling`` and ``NeuronModelBase`` of transformers-neuronx, over a tiny model.

Routing, padding, buckets and the order of rows are the library's own code. Stubs stand for the checkpoint
and for the compiled decoders.
"""

import bisect
import builtins
import enum
import itertools
import logging
import os
import warnings
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...neuron_backend.adapters.kv_model import KvModel
from ..checkouts import TRANSFORMERS_NEURONX
from ..source import take

_ROOT = "src/transformers_neuronx"


class Wrapping(torch.nn.Module):
    """Stands for ``WrappingCheckpointCompatibleModel``: a checkpoint that is embedded on the device."""

    def __init__(self, checkpoint_class: type, config: Any) -> None:
        super().__init__()


class Decoder:
    """
    Stands for a compiled ``DecoderLmHead``: inputs of exactly the compiled shapes, then computed.

    A verification with 2-D cache ids reads the rows in order and writes those of ``start_ids``; context
    encoding under continuous batching writes the row of ``start_ids``.
    """

    def __init__(
        self, owner: "Decoders", columns: int, buckets: Sequence[int], batch: int, kind: str
    ) -> None:
        self.owner, self.columns, self.buckets, self.batch, self.kind = owner, columns, buckets, batch, kind

    def __call__(self, ids: Tensor, cache_ids: Tensor, start_ids: Tensor, *rest: Tensor) -> Tensor:
        two = self.owner.config.use_2d_cache_ids
        width = (self.batch, self.columns)
        self._require(ids, *width)
        self._require(cache_ids, *(width if two else width[1:]))
        self._require(start_ids, self.batch)
        # The host's tensors are copied into buffers of int32.
        ids, positions = ids.int(), cache_ids.int().expand(width)
        bucket = next((size for size in self.buckets if size > positions.max()), None)
        if bucket is None:
            raise RuntimeError(f"{self.kind}: cache id {int(positions.max())} in buckets {self.buckets}")
        self.owner.calls.append(self.kind)
        rows = start_ids.tolist()
        if self.kind == "context":
            return self._context(ids, rows, rest[0]).permute(2, 1, 0)
        before = torch.arange(bucket) < positions[:, :1]
        logits = self.owner.device.extend(ids, positions, before, slice(None))
        written = rows if two and self.kind == "speculation" else list(range(self.batch))
        self.owner.device.scatter(written, positions)
        return logits.permute(2, 1, 0)

    def _context(self, ids: Tensor, rows: list[int], last_token_id: Tensor) -> Tensor:
        config = self.owner.config
        self._require(last_token_id, self.batch if config.vectorize_last_token_id else 1)
        logits = self.owner.device.encode(ids, torch.arange(self.columns).expand(self.batch, -1))
        self.owner.device.fill(rows if config.continuous_batching else slice(None))
        return logits[torch.arange(self.batch), last_token_id.long()][:, None]

    def _require(self, tensor: Tensor, *shape: int) -> None:
        if tuple(tensor.shape) != shape:
            raise RuntimeError(f"{self.kind}: expected {shape}, got {tuple(tensor.shape)}")

    def reset(self) -> None:
        """Caches are overwritten, not cleared."""


class Decoders:
    """Stands for ``DecoderLmHeadForSamplingNoEmbedding`` as the maker of the compiled decoders."""

    device: KvModel

    def __init__(self, neuron_config: Any, batch_size: list[int], **sizes: Any) -> None:
        self.config, self.batch_size = neuron_config, batch_size
        self.calls: list[str] = []

    def init_token_decoder(self, unroll: int, buckets: list[int], model_obj: Any) -> Decoder:
        """The decoder of one token."""
        return Decoder(self, 1, buckets, self.batch_size[-1], "token")

    def init_context_decoder(
        self, unroll: int, buckets: list[int], model_obj: Any, context_batch_sizes: list[int]
    ) -> dict[tuple[int, int], Decoder]:
        """A decoder for each bucket and number of rows."""
        return {
            (bucket, batch): Decoder(self, bucket, [bucket], batch, "context")
            for bucket, batch in itertools.product(buckets, context_batch_sizes)
        }

    def init_speculative_decoder(
        self,
        unroll: int,
        buckets: list[int],
        model_obj: Any,
        n_active_tokens: int,
        batch_size: int,
        **rest: Any,
    ) -> Decoder:
        """The decoder of a verification."""
        return Decoder(self, n_active_tokens, buckets, batch_size, "speculation")


def real_model(
    model: PreTrainedModel,
    *,
    rows: int,
    positions: int,
    context: list[int],
    by_row: bool = False,
    padding_side: str = "left",
    speculation_length: int = 0,
) -> Any:
    """A model over *model*, as after ``to_neuron()``, which lists its calls."""
    library = _library()
    batching = library.ContinuousBatchingConfig(batch_size_for_shared_caches=rows) if by_row else None
    loaded = library.LlamaForSampling(
        model.config,
        n_positions=[positions],
        batch_size=rows,
        context_length_estimate=context or 0,
        neuron_config=library.NeuronConfig(
            on_device_embedding=True, padding_side=padding_side, continuous_batching=batching
        ),
    )
    if speculation_length:
        loaded.enable_speculative_decoder(speculation_length)
    loaded.decoder_param_set.device = KvModel(model, rows, positions)
    loaded.routed = loaded.decoder_param_set.calls
    return loaded


@cache
def _library() -> SimpleNamespace:
    """The library's own classes."""
    constants = take(
        TRANSFORMERS_NEURONX.file(f"{_ROOT}/constants.py"),
        *("GQA", "Layout", "LAYOUT_BSH", "LAYOUT_HSB", "KV_SHARD_PAD"),
        enum=enum,
    )
    configs = take(
        TRANSFORMERS_NEURONX.file(f"{_ROOT}/config.py"),
        *("ContinuousBatchingConfig", "NeuronConfig", "valid_dtypes"),
        os=os,
        warnings=warnings,
        # Stands for the package, which the configuration imports when it is asked for a layout.
        __builtins__=_with_import(transformers_neuronx=SimpleNamespace(constants=constants)),
        **vars(constants),
    )
    utils = take(
        TRANSFORMERS_NEURONX.file(f"{_ROOT}/utils.py"),
        *("maybe_override_attributes", "pad", "pad_sizes", "power_of_two_bucket_sizes"),
        F=torch.nn.functional,
        itertools=itertools,
        torch=torch,
    )
    bucket = take(
        TRANSFORMERS_NEURONX.file(f"{_ROOT}/bucket.py"),
        *("batch_sizes", "context_sizes", "find", "token_sizes"),
        bisect=bisect,
        utils=utils,
    )
    base = take(
        TRANSFORMERS_NEURONX.file(f"{_ROOT}/base.py"),
        "NeuronModelBase",
        module=SimpleNamespace(WrappingCheckpointCompatibleModel=Wrapping),
        bucket=bucket,
        logging=logging,
        torch=torch,
        utils=utils,
        **vars(constants),
    )
    config = take(TRANSFORMERS_NEURONX.file(f"{_ROOT}/llama/config.py"), "LlamaConfig", utils=utils)
    llama = take(
        TRANSFORMERS_NEURONX.file(f"{_ROOT}/llama/model.py"),
        "LlamaForSampling",
        base=base,
        bucket=bucket,
        decoder=SimpleNamespace(DecoderLmHeadForSamplingNoEmbedding=Decoders),
        # Stand for the graphs' builder and for the checkpoint.
        LlamaForSamplingNoEmbeddingHlo=lambda config, neuron_config: None,
        LlamaForCausalLM=object,
        LlamaConfig=config.LlamaConfig,
        NeuronConfig=configs.NeuronConfig,
        torch=torch,
        utils=utils,
        warnings=warnings,
        **vars(constants),
    )
    return SimpleNamespace(**vars(configs), **vars(llama))


def _with_import(**modules: Any) -> dict[str, Any]:
    """Built-ins whose ``import`` gives *modules*, and nothing else."""
    return vars(builtins) | {"__import__": lambda name, *rest: modules[name]}
