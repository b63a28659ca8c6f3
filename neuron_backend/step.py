"""Steps: one forward of a model over the KV cache, as a pure module of fixed shapes."""

import abc
import copy
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from .kv_cache.buffers import SPARE, CacheBuffers
from .kv_cache.masks import MaskPlan, Reach
from .kv_cache.overflow import without_overflow
from .kv_cache.positioned_cache import PositionedCache
from .kv_cache.writes import CacheWrite, write_in_place
from .models.cache_argument import cache_argument
from .tensor_parallel.parallel_layers import all_reduce
from .tensor_parallel.sharding import ranks_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def supports_logits_to_keep(model: "PreTrainedModel") -> bool:
    """Whether *model* can score the last columns only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


class CacheProgram(nn.Module, abc.ABC):
    """What a target compiles: a module of fixed shapes, whose last inputs are the slots and the cache."""

    kind: str
    """Prefix of the names of its programs."""

    @abc.abstractmethod
    def padding(self, width: int, cache: CacheBuffers, span: int) -> tuple[Tensor, ...]:
        """Inputs of *width* columns that change nothing that is attended to: what it is traced with."""


class Step(CacheProgram):
    """A forward of a model."""

    model: "PreTrainedModel"
    """The stock model, in evaluation mode."""

    write: CacheWrite = staticmethod(write_in_place)
    """How ``forward`` writes into the cache, in place."""

    def writing_with(self, write: CacheWrite) -> Self:
        """The same step with another way to write into the cache; it shares the model."""
        step = copy.copy(self)
        step.write = write
        return step


class DecoderStep(Step):
    """
    A Hugging Face causal LM as ``(ids, cache_pos, slots, *cache) -> logits``.

    All shapes are fixed and no control flow depends on data, so eager execution, ``torch.export`` and every
    compiler use the same module. The shape of *slots* determines how much of the cache is attended to.
    """

    kind = "width"

    def __init__(self, model: "PreTrainedModel", scored_width: int, kept: int = 1):
        """
        Wrap *model*, which is not copied.

        Args:
            model: The stock model, in evaluation mode.

            scored_width: Forwards up to this width score every column.

            kept: Number of last columns that wider forwards score.
        """
        super().__init__()
        self.model = model
        self.scored_width = scored_width
        self.kept = kept
        self.plan = MaskPlan.of(model)
        self._keeps_logits = supports_logits_to_keep(model)

    def forward(self, ids: Tensor, cache_pos: Tensor, slots: Tensor, *cache: Tensor) -> Tensor:
        """
        Write the tokens' keys and values into *cache* and return the logits of the next tokens.

        Args:
            ids: Tokens, ``[batch, width]`` int64; -1 is padding.

            cache_pos: Position of the first column, ``[batch]`` int64.

            slots: :meth:`~.kv_cache.buffers.CacheBuffers.addresses` of a span that holds every position.

            cache: :attr:`~.kv_cache.buffers.CacheBuffers.tensors`; written in place.

        Returns:
            ``[batch, width or kept, vocab]`` float32; NaN after a token that overflowed.
        """
        logits, _ = self.score(ids, cache_pos, slots, cache, self.write)
        return logits

    def score(
        self,
        ids: Tensor,
        cache_pos: Tensor,
        slots: Tensor,
        cache: Sequence[Tensor],
        write: CacheWrite,
        row: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """
        :meth:`forward` with any :data:`~.kv_cache.writes.CacheWrite`: logits and the written cache.

        With *row*, ``[1]``, the tokens are those of that row alone, ``[1, width]``.
        """
        padding = ids < 0
        columns = torch.arange(ids.shape[1], dtype=cache_pos.dtype, device=ids.device)
        positions = cache_pos[:, None] + columns
        kept = PositionedCache(cache, positions.masked_fill(padding, SPARE), slots, write, row=row)
        output = self.model(
            input_ids=ids.masked_fill(padding, 0),
            attention_mask=self.plan.masks(positions, padding, slots, self.model.dtype),
            position_ids=positions.masked_fill(padding, 0),
            use_cache=True,
            **{cache_argument(self.model): kept},
            **self._keep(ids.shape[1]),
        )
        logits: Tensor = output.logits
        if ids.shape[1] > self.scored_width:
            logits = logits[:, -self.kept :]
        scored = slice(-logits.shape[1], None)
        seen = Reach().sees(positions[:, scored], padding[:, scored], slots)
        return _marked(logits, seen, kept, self.model), kept.tensors

    def padding(self, width: int, cache: CacheBuffers, span: int) -> tuple[Tensor, ...]:
        """The inputs of a forward of *width* over padding alone: what it is traced with."""
        batch_size = cache.keys[0].shape[0]
        ids = torch.full((batch_size, width), -1)
        start = torch.zeros(batch_size, dtype=torch.int64)
        return ids, start, cache.addresses(span), *cache.tensors

    def _keep(self, width: int) -> dict[str, int]:
        # The head would be the largest cost of a wide prefill.
        return {"logits_to_keep": self.kept} if self._keeps_logits and width > self.scored_width else {}


class TreeStep(Step):
    """
    Forward over a token tree as ``(ids, positions, written, path, slots, *cache) -> logits``.

    The tree's layout is computed on the host (:mod:`.kv_cache.tree_layout`), so no shape and no operation
    depends on it.
    """

    kind = "tree"

    def __init__(self, model: "PreTrainedModel"):
        super().__init__()
        self.model = model
        self.plan = MaskPlan.of(model)

    def forward(
        self, ids: Tensor, positions: Tensor, written: Tensor, path: Tensor, slots: Tensor, *cache: Tensor
    ) -> Tensor:
        """
        Write the columns' keys and values into *cache* and return the logits of the next tokens.

        Args:
            ids: Tokens, ``[batch, width]`` int64; -1 is padding.

            positions: Position of each column, ``[batch, width]`` int64; the tree begins at the first's.

            written: Address that each column is written to, ``[batch, width]`` int64, unique in a row.

            path: Ancestors of each column, itself included, ``[batch, width, width]`` bool.

            slots: :meth:`~.kv_cache.buffers.CacheBuffers.addresses` of a span that holds every position.

            cache: :attr:`~.kv_cache.buffers.CacheBuffers.tensors`; written in place.

        Returns:
            ``[batch, width, vocab]`` float32; NaN after a token that overflowed.
        """
        logits, _ = score_tree(self.model, self.plan, ids, positions, written, path, slots, cache, self.write)
        return logits

    def padding(self, width: int, cache: CacheBuffers, span: int) -> tuple[Tensor, ...]:
        """The inputs of a forward of *width* over padding alone: what it is traced with."""
        batch_size = cache.keys[0].shape[0]
        ids = torch.full((batch_size, width), -1)
        positions = torch.zeros(batch_size, width, dtype=torch.int64)
        path = torch.eye(width, dtype=torch.bool).expand(batch_size, -1, -1).contiguous()
        written = (SPARE - 1 - torch.arange(width)).repeat(batch_size, 1)
        return ids, positions, written, path, cache.addresses(span), *cache.tensors


def score_tree(
    model: "PreTrainedModel",
    plan: MaskPlan,
    ids: Tensor,
    positions: Tensor,
    written: Tensor,
    path: Tensor,
    slots: Tensor,
    cache: Sequence[Tensor],
    write: CacheWrite,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A :class:`TreeStep` with any :data:`~.kv_cache.writes.CacheWrite`: logits and the written cache."""
    kept = PositionedCache(cache, written, slots, write, columns=positions)
    output = model(
        input_ids=ids.clamp(min=0),
        attention_mask=plan.tree_masks(positions, written, path, slots, model.dtype),
        position_ids=positions,
        use_cache=True,
        **{cache_argument(model): kept},
    )
    seen = Reach().tree_sees(positions, written, path, slots, model.dtype)
    return _marked(output.logits, seen, kept, model), kept.tensors


def _marked(logits: Tensor, seen: Tensor, cache: PositionedCache, model: "PreTrainedModel") -> Tensor:
    """The logits as float32, NaN in columns that saw a token that overflowed, on any rank."""
    ranks = ranks_of(model)
    # Each rank holds some of the heads.
    marks = cache.mark_overflow(lambda own: own if ranks is None else all_reduce(own, ranks.group))
    return without_overflow(logits, seen, marks)


def tensors_of(step: CacheProgram) -> dict[str, Tensor]:
    """Parameters and buffers by name; tied ones by each of their names."""
    return {
        **dict(step.named_parameters(remove_duplicate=False)),
        **dict(step.named_buffers(remove_duplicate=False)),
    }


def program_name(step: CacheProgram, width: int) -> str:
    """Name of the program of *step* at one width, in files and errors."""
    return f"{step.kind}_{width}"
