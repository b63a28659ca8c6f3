"""A tiny Hugging Face model with a KV cache per row, as a device holds it."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.neuron_backend.models.cache_argument import cache_argument


class _Active:
    """Keys and values of one call: the slots of the cache, then the call's own columns."""

    is_compileable = True

    def __init__(self, prior: list[tuple[Tensor, Tensor]] | None) -> None:
        self.prior = prior
        self.new: list[tuple[Tensor, Tensor]] = []

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any):
        self.new.append((keys, values))
        if self.prior is None:
            return keys, values
        held_keys, held_values = self.prior[layer_idx]
        return torch.cat([held_keys, keys], dim=2), torch.cat([held_values, values], dim=2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0


class KvModel:
    """
    Keys and values ``[rows, heads, slots, head_dim]`` of each layer, and the two ways to attend.

    Slots that were never written hold large numbers, so that attending to one changes the logits.
    """

    def __init__(self, model: PreTrainedModel, rows: int, slots: int) -> None:
        self.model, self.rows, self.slots = model, rows, slots
        config = model.config
        heads = config.num_key_value_heads
        size = config.hidden_size // config.num_attention_heads
        random = torch.Generator().manual_seed(1)
        self.cache = [
            tuple(
                30 * torch.randn(rows, heads, slots, size, generator=random, dtype=model.dtype)
                for _ in range(2)
            )
            for _ in range(config.num_hidden_layers)
        ]
        self.new: list[tuple[Tensor, Tensor]] = []

    def encode(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Context encoding: columns attend to the columns before them, not to the cache."""
        columns = ids.shape[1]
        seen = torch.ones(columns, columns, dtype=torch.bool).tril().expand(len(ids), 1, -1, -1)
        return self._run(ids, positions, seen, None)

    def extend(self, ids: Tensor, positions: Tensor, before: Tensor, rows: slice | list[int]) -> Tensor:
        """Token generation: columns attend to the slots of *rows* where *before* is 1, and to each other."""
        columns = ids.shape[1]
        own = torch.ones(columns, columns, dtype=torch.bool).tril().expand(len(ids), 1, -1, -1)
        held = before.bool()[:, None, None].expand(-1, 1, columns, -1)
        span = before.shape[1]
        prior = [(keys[rows, :, :span], values[rows, :, :span]) for keys, values in self.cache]
        return self._run(ids, positions, torch.cat([held, own], dim=-1), prior)

    def fill(self, rows: slice | list[int]) -> None:
        """Write the columns of the last call to the slots 0, 1, 2, ... of *rows*."""
        for (keys, values), (new_keys, new_values) in zip(self.cache, self.new, strict=True):
            keys[rows, :, : new_keys.shape[2]] = new_keys
            values[rows, :, : new_values.shape[2]] = new_values

    def scatter(self, rows: list[int], positions: Tensor) -> None:
        """
        Write the columns of the last call to the slots at their *positions*.

        Where several columns at one slot differ, the slot is spoilt: which one is kept is undefined.
        """
        at, slots = torch.tensor(rows)[:, None], positions.long()
        twice = (slots[:, :, None] == slots[:, None, :]).sum(dim=-1) > 1
        for held, new in zip(self.cache, self.new, strict=True):
            for kept, states in zip(held, new, strict=True):
                states = states.transpose(1, 2).contiguous()
                kept.transpose(1, 2)[at, slots] = states
                for row, column in twice.nonzero().tolist():
                    slot = slots[row, column]
                    others = states[row, slots[row] == slot]
                    if not torch.allclose(others, others[:1].expand_as(others)):
                        kept[rows[row], :, slot] = torch.nan

    def prompts(self, ids: Tensor, positions: Tensor, rows: slice | list[int]) -> Tensor:
        """Encode prompts, write them to *rows*, and score each one's column of the highest position."""
        logits = self.encode(ids, positions)
        self.fill(rows)
        last = positions.max(dim=1, keepdim=True).indices[..., None]
        return logits.gather(1, last.expand(-1, 1, logits.shape[-1]))

    def columns(self, ids: Tensor, positions: Tensor, before: Tensor, rows: list[int]) -> Tensor:
        """Feed columns at *positions* to *rows*, and score each."""
        logits = self.extend(ids, positions, before, rows)
        self.scatter(rows, positions)
        return logits

    @torch.no_grad()
    def _run(self, ids: Tensor, positions: Tensor, seen: Tensor, prior) -> Tensor:
        active = _Active(prior)
        mask = torch.zeros(seen.shape, dtype=self.model.dtype).masked_fill(
            ~seen, torch.finfo(self.model.dtype).min
        )
        output = self.model(
            input_ids=ids.long(),
            attention_mask=mask,
            position_ids=positions.long(),
            use_cache=True,
            **{cache_argument(self.model): active},
        )
        self.new = active.new
        return output.logits.float()


def require_ints(dtype: torch.dtype, **tensors: Tensor) -> None:
    """Refuse inputs of another dtype, as a compiled graph does."""
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise TypeError(f"{name}: expected {dtype}, got {tensor.dtype}")


def require_shape(name: str, tensor: Tensor, *shape: int) -> None:
    """Refuse inputs of another shape, as a compiled graph does."""
    if tuple(tensor.shape) != shape:
        raise RuntimeError(f"{name}: expected {shape}, got {tuple(tensor.shape)}")
