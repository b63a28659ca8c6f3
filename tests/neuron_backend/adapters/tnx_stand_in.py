"""
Stand-in for a model of transformers-neuronx, over a tiny model.

Layouts, padding and shared cache as in ``base.py`` and ``llama/model.py``: the facts, with the commit, are
in ``tests/neuron_sources/transformers_neuronx/facts.py``.
"""

from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from .kv_model import KvModel, require_ints, require_shape


class TnxModel:
    """A ``LlamaForSampling`` after ``to_neuron()``."""

    def __init__(
        self,
        model: PreTrainedModel,
        layout: str,
        batch_size: int = 3,
        n_positions: int = 48,
        context_buckets: tuple[int, ...] = (8, 24),
        speculation_length: int = 0,
    ) -> None:
        self.layout = layout
        by_row = layout == "continuous"
        self.neuron_config = SimpleNamespace(
            continuous_batching=SimpleNamespace(batch_size_for_shared_caches=batch_size) if by_row else None,
            use_2d_cache_ids=layout != "1-D",
            on_device_generation=None,
        )
        self.config = SimpleNamespace(vocab_size=model.config.vocab_size, n_positions=n_positions)
        self.batch_sizes = [batch_size]
        self.token_buckets = [n_positions]
        self.context_buckets = list(context_buckets)
        self.decoder_lm_head_for_speculation = (
            {(speculation_length, batch_size): None} if speculation_length else {}
        )
        self.device = KvModel(model, batch_size, n_positions)
        self.batch_size, self.resets = batch_size, 0
        self.routed: list[str] = []

    def __call__(self, input_ids, cache_ids=None, start_ids=None) -> Tensor:
        if input_ids.shape[1] > 1:
            self.routed.append("context")
            return self._context(input_ids, cache_ids, start_ids)
        self.routed.append("token")
        if self.layout == "continuous":
            # Rows that are not in the call get token 0 at position 0.
            ids, cache = torch.zeros(self.batch_size, 1), torch.zeros(self.batch_size, 1)
            require_ints(input_ids.dtype, cache_ids=cache_ids)
            for at, row in enumerate(start_ids.tolist()):
                ids[row], cache[row] = input_ids[at], cache_ids[at]
            logits = self._extend(ids.long(), cache.int(), 1)
            return logits[start_ids.long(), -1]
        return self._extend(input_ids, cache_ids, 1)[:, -1]

    def speculative_forward(self, input_ids, cache_ids=None, start_ids=None, speculation_length=None):
        if self.layout == "continuous":
            raise AssertionError("no program for a verification padded to a context bucket")
        self.routed.append("speculation")
        if (speculation_length, len(input_ids)) not in self.decoder_lm_head_for_speculation:
            raise KeyError((speculation_length, len(input_ids)))
        written = None
        if self.layout == "2-D":
            # The rows that are written, unlike those that are read.
            written = [0] * len(input_ids) if start_ids is None else start_ids.tolist()
        return self._extend(input_ids, cache_ids, speculation_length, written).permute(1, 2, 0)

    def reset(self) -> None:
        self.resets += 1

    def _context(self, ids, cache_ids, start_ids) -> Tensor:
        count = ids.shape[1]
        fitting = [size for size in self.context_buckets if size >= count]
        if not fitting:
            raise ValueError(f"no context bucket for {count} tokens: {self.context_buckets}")
        bucket = fitting[0]
        ids = pad(ids, (0, bucket - count))
        if self.layout == "1-D":
            if cache_ids is not None:
                require_shape("cache_ids", cache_ids, bucket)
            last = torch.full((len(ids),), count - 1)
        else:
            require_ints(torch.int32, cache_ids=cache_ids)
            require_shape("cache_ids", cache_ids, len(ids), bucket)
            last = cache_ids.max(dim=1).values.long()
        batch = 1 if self.layout == "continuous" else self.batch_size
        require_shape("input_ids", ids, batch, bucket)
        positions = torch.arange(bucket).expand(batch, -1)
        logits = self.device.encode(ids, positions)
        self.device.fill(start_ids.long().tolist() if self.layout == "continuous" else slice(None))
        return logits[torch.arange(batch), last]

    def _extend(self, ids, cache_ids, columns: int, written: list[int] | None = None) -> Tensor:
        require_ints(torch.int32, cache_ids=cache_ids)
        require_shape("input_ids", ids, self.batch_size, columns)
        if self.layout == "1-D":
            require_shape("cache_ids", cache_ids, columns)
            cache_ids = cache_ids.expand(self.batch_size, -1)
        require_shape("cache_ids", cache_ids, self.batch_size, columns)
        before = torch.arange(self.config.n_positions) < cache_ids[:, :1]
        logits = self.device.extend(ids, cache_ids, before, slice(None))
        self.device.scatter(list(range(self.batch_size)) if written is None else written, cache_ids)
        return logits
