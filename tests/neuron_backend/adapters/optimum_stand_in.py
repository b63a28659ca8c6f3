"""
Stand-in for a model of optimum-neuron, over a tiny model.

Routing, padding, dtypes and shared cache as in ``models/inference/backend/modules/decoder`` and
``modules/kvcache``: the facts, with the commit, are in ``tests/neuron_sources/optimum_neuron/facts.py``.
"""

from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from .kv_model import KvModel, require_ints, require_shape


class OptimumModel:
    """A loaded ``NeuronModelForCausalLM``."""

    def __init__(
        self,
        model: PreTrainedModel,
        batch_size: int = 3,
        sequence_length: int = 48,
        max_context_length: int = 24,
        speculation_length: int = 0,
        continuous_batching: bool = True,
        prefill_chunk_size: int = 0,
        **settings: object,
    ) -> None:
        self.neuron_config = SimpleNamespace(
            batch_size=batch_size,
            max_batch_size=batch_size,
            sequence_length=sequence_length,
            max_context_length=max_context_length,
            speculation_length=speculation_length,
            continuous_batching=continuous_batching,
            prefill_chunk_size=prefill_chunk_size,
            on_device_sampling=False,
            output_logits=False,
        )
        vars(self.neuron_config).update(settings)
        self.config = SimpleNamespace(vocab_size=model.config.vocab_size, pad_token_id=0)
        self.device = KvModel(model, batch_size, sequence_length)
        self.routed: list[str] = []
        self.resets = 0

    def forward(self, input_ids, position_ids, seq_ids=None, sampling_params=None):
        config = self.neuron_config
        if input_ids.shape[-1] > 1 and not position_ids.min().item():
            if config.prefill_chunk_size:
                raise RuntimeError("there is no context encoding graph: prefill_chunk_size was given")
            return self._output(self._context(input_ids, position_ids, seq_ids, sampling_params))
        columns = input_ids.shape[-1] if input_ids.shape[-1] == config.speculation_length else 1
        self.routed.append("token" if columns == 1 else "speculation")
        return self._output(self._generate(input_ids, position_ids, seq_ids, sampling_params, columns))

    def _output(self, logits: Tensor) -> Tensor | list[Tensor]:
        config = self.neuron_config
        first = logits[:, -1].argmax(dim=-1) if config.on_device_sampling else logits
        # Two cores: what is whole on each of them is gathered twice.
        cores = 1 if config.on_device_sampling else 2
        return [first, torch.cat([logits] * cores, dim=2)] if config.output_logits else first

    def prefill_chunk(self, input_ids, position_ids, seq_ids, sampling_params):
        config, batch = self.neuron_config, self._prompt_batch
        self.routed.append("chunk")
        ids, positions, rows = (tensor.to(torch.int32) for tensor in (input_ids, position_ids, seq_ids))
        missing = config.prefill_chunk_size - ids.shape[1]
        ids = torch.cat([ids, ids[:, -1:].expand(-1, missing)], dim=1)
        positions = torch.cat([positions, positions[:, -1:].expand(-1, missing)], dim=1)
        logits = self._graph(ids, positions, rows, sampling_params, batch, config.prefill_chunk_size)
        return [logits, logits] if config.output_logits else logits

    def reset(self) -> None:
        self.resets += 1

    @property
    def _prompt_batch(self) -> int:
        return 1 if self.neuron_config.continuous_batching else self.neuron_config.batch_size

    def _context(self, ids, positions, rows, sampling) -> Tensor:
        config, batch = self.neuron_config, self._prompt_batch
        self.routed.append("context")
        ids, positions, rows = (tensor.to(torch.int32) for tensor in (ids, positions, rows))
        if len(rows) < batch:
            # As the library's wrapper pads a batch: with the inputs of the first row.
            ids, positions, sampling = (
                torch.cat([t, t[:1].repeat(batch - len(t), 1)]) for t in (ids, positions, sampling)
            )
            others = [row for row in range(batch) if row not in rows.tolist()]
            rows = torch.tensor(rows.tolist() + others, dtype=torch.int32)
        missing = config.max_context_length - ids.shape[1]
        ids, positions = pad(ids, (0, missing), value=0), pad(positions, (0, missing), value=1)
        logits = []
        for first in range(0, len(rows), batch):
            part = slice(first, first + batch)
            require_shape("input_ids", ids[part], batch, config.max_context_length)
            require_shape("sampling_params", sampling[part], batch, 3)
            own = rows[part].long().tolist() if config.continuous_batching else slice(None)
            logits.append(self.device.prompts(ids[part], positions[part], own))
        return torch.cat(logits)

    def _generate(self, ids, positions, rows, sampling, columns: int) -> Tensor:
        ids, positions, rows = (tensor.to(torch.int32) for tensor in (ids, positions, rows))
        return self._graph(ids, positions, rows, sampling, self.neuron_config.batch_size, columns)

    def _graph(self, ids, positions, rows, sampling, batch: int, columns: int) -> Tensor:
        require_ints(torch.int32, ids=ids, positions=positions, rows=rows)
        require_shape("input_ids", ids, batch, columns)
        require_shape("position_ids", positions, batch, columns)
        require_shape("sampling_params", sampling, batch, 3)
        own = rows.long().tolist() if batch == 1 else list(range(batch))
        return self.device.columns(ids, positions, self._before(positions), own)

    def _before(self, positions: Tensor) -> Tensor:
        return torch.arange(self.neuron_config.sequence_length) < positions[:, :1]


class MaskedOptimumModel(OptimumModel):
    """
    The model of earlier versions.

    Without a mask it makes one, which is wrong for several columns; its output is an object.
    """

    def forward(self, input_ids, position_ids, seq_ids=None, attention_mask=None, sampling_params=None):
        self._mask = attention_mask
        if attention_mask is None:
            self._mask = position_ids >= torch.arange(position_ids.shape[1])
        return SimpleNamespace(logits=super().forward(input_ids, position_ids, seq_ids, sampling_params))

    def _before(self, positions: Tensor) -> Tensor:
        return pad(self._mask, (0, self.neuron_config.sequence_length - self._mask.shape[1]))
