"""
Stand-in for a model of neuronx-distributed-inference, over a tiny model.

Routing, padding, buckets, dtypes and shared cache as in ``models/model_base.py``,
``models/model_wrapper.py`` and ``modules/kvcache/kv_cache_manager.py``: the facts, with the commit, are in
``tests/neuron_sources/nxd_inference/facts.py``.
"""

from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from .kv_model import KvModel, require_ints, require_shape

CONTEXT, TOKEN, VERIFY = "context_encoding_model", "token_generation_model", "speculation_model"


class NxDModel:
    """A loaded ``NeuronBaseForCausalLM``."""

    def __init__(
        self,
        model: PreTrainedModel,
        batch_size: int = 3,
        max_length: int = 48,
        max_context_length: int = 24,
        context_buckets: tuple[int, ...] = (8, 16, 24),
        token_buckets: tuple[int, ...] = (16, 32, 48),
        speculation_length: int = 0,
        is_continuous_batching: bool = True,
        before_2_22: bool = False,
        **settings: object,
    ) -> None:
        self.neuron_config = SimpleNamespace(
            batch_size=batch_size,
            tkg_batch_size=batch_size,
            spec_batch_size=batch_size,
            max_batch_size=batch_size,
            ctx_batch_size=1 if is_continuous_batching else batch_size,
            max_length=max_length,
            seq_len=max_length,
            max_context_length=max_context_length,
            context_encoding_buckets=list(context_buckets),
            token_generation_buckets=list(token_buckets),
            speculation_length=speculation_length,
            is_continuous_batching=is_continuous_batching,
            padding_side="right",
            on_device_sampling_config=None,
            output_logits=False,
            async_mode=False,
            enable_fused_speculation=False,
        )
        vars(self.neuron_config).update(settings)
        self.config = SimpleNamespace(vocab_size=model.config.vocab_size, pad_token_id=0)
        self.device = KvModel(model, batch_size, max_length)
        self.buckets = {CONTEXT: context_buckets, TOKEN: token_buckets, VERIFY: token_buckets}
        self.context_encoding_model = CONTEXT
        # One of the two, and both only before SDK 2.22.
        if speculation_length > 0:
            self.speculation_model = VERIFY
        if speculation_length == 0 or before_2_22:
            self.token_generation_model = TOKEN
        self.routed: list[str] = []
        self.resets = 0

    def __call__(
        self, input_ids=None, attention_mask=None, position_ids=None, seq_ids=None, sampling_params=None
    ):
        config = self.neuron_config
        samples = config.on_device_sampling_config is not None
        if sampling_params is None:
            sampling_params = torch.ones(config.batch_size, 3)
        if position_ids.min().item() == 0:
            tag = self.context_encoding_model
        elif input_ids.shape[-1] == config.speculation_length:
            tag = self.speculation_model
        else:
            tag = self.token_generation_model
        self.routed.append(tag)
        logits = self._wrapper(tag, sampling_params, input_ids, attention_mask, position_ids, seq_ids)
        if samples and not config.output_logits:
            return SimpleNamespace(logits=None, tokens=logits[:, -1].argmax(dim=-1))
        return SimpleNamespace(logits=logits, tokens=None)

    def reset(self) -> None:
        self.resets += 1

    def _wrapper(self, tag: str, sampling: Tensor, *inputs: Tensor) -> Tensor:
        config = self.neuron_config
        ids, mask, positions, rows = (tensor.to(torch.int32) for tensor in inputs)
        spare = config.speculation_length if tag == VERIFY else 0
        bucket = self._bucket(tag, mask.shape[1], spare)
        if tag == CONTEXT:
            ids = pad(ids, (0, bucket - ids.shape[1]), value=self.config.pad_token_id)
            positions = pad(positions, (0, bucket - positions.shape[1]), value=1)
        mask = pad(mask, (0, bucket - mask.shape[1]))
        batch = config.ctx_batch_size if tag == CONTEXT else config.tkg_batch_size
        if len(rows) == batch:
            return self._graph(tag, bucket, ids, mask, positions, rows, sampling)
        if len(rows) > batch:
            parts = [slice(row, row + batch) for row in range(0, len(rows), batch)]
            return torch.cat(
                [
                    self._graph(tag, bucket, *(t[p] for t in (ids, mask, positions, rows, sampling)))
                    for p in parts
                ]
            )
        return self._padded(tag, bucket, batch, rows, ids, mask, positions, sampling)

    def _padded(self, tag: str, bucket: int, batch: int, rows, *inputs: Tensor) -> Tensor:
        """Pad the batch: rows that are not in the call get the inputs of its first row."""
        others = [row for row in range(batch) if row not in rows.tolist()]
        order = torch.tensor(rows.tolist() + others).argsort()
        ids, mask, positions, sampling = (
            t if len(t) == batch else torch.cat([t, t[:1].repeat(batch - len(t), 1)]).index_select(0, order)
            for t in inputs
        )
        every = torch.arange(batch, dtype=torch.int32)
        logits = self._graph(tag, bucket, ids, mask, positions, every, sampling)
        return logits.index_select(0, rows)

    def _bucket(self, tag: str, length: int, spare: int) -> int:
        buckets = self.buckets[tag]
        for bucket in buckets:
            if length + spare < bucket:
                return bucket
        if length + spare == buckets[-1]:
            return buckets[-1]
        raise ValueError(f"Input len {length} exceeds largest bucket ({buckets[-1]}) for {tag}")

    def _graph(self, tag: str, bucket: int, ids, mask, positions, rows, sampling) -> Tensor:
        config, device = self.neuron_config, self.device
        require_ints(torch.int32, ids=ids, mask=mask, positions=positions, rows=rows)
        batch = config.ctx_batch_size if tag == CONTEXT else config.tkg_batch_size
        columns = {CONTEXT: bucket, TOKEN: 1, VERIFY: config.speculation_length}[tag]
        require_shape("input_ids", ids, batch, columns)
        require_shape("position_ids", positions, batch, columns)
        require_shape("attention_mask", mask, batch, bucket)
        require_shape("sampling_params", sampling, batch, 3)
        if tag == CONTEXT:
            own = rows.long().tolist() if config.is_continuous_batching else slice(None)
            return device.prompts(ids, positions, own)
        if positions.max() >= bucket:
            raise RuntimeError(f"scatter: position {int(positions.max())} in a bucket of {bucket}")
        # The graph takes rows in order of position, ignoring seq_ids.
        return device.columns(ids, positions, mask, list(range(batch)))
