"""One forward of a model over the cache, as a pure module of fixed shapes."""

import inspect

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .cache import PositionedCache
from .masks import MaskPlan


def keeps_logits(model: PreTrainedModel) -> bool:
    """Whether *model* can be asked to score the last columns only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


class DecoderStep(nn.Module):
    """
    A Hugging Face causal LM as ``(ids, cache_pos, *cache) -> logits``.

    All shapes are fixed and nothing depends on the data, so eager execution, ``torch.export``
    and every compiler behind it take the same module.
    """

    def __init__(self, model: PreTrainedModel, max_length: int, scored_width: int):
        super().__init__()
        self.model = model
        self.max_length = max_length
        self.scored_width = scored_width
        self.plan = MaskPlan.of(model)
        self._keeps_logits = keeps_logits(model)

    def forward(self, ids: Tensor, cache_pos: Tensor, *cache: Tensor) -> Tensor:
        """
        Write the tokens into *cache* and score what may follow them.

        Args:
            ids: Tokens, ``[batch, width]`` int64; -1 is padding.

            cache_pos: Position of the first column, ``[batch]`` int64.

            cache: :attr:`~.cache.CacheBuffers.tensors`; written in place.

        Returns:
            ``[batch, width or 1, vocab]`` float32.
        """
        padding = ids < 0
        positions = cache_pos[:, None] + torch.arange(ids.shape[1], device=ids.device)
        output = self.model(
            input_ids=ids.masked_fill(padding, 0),
            attention_mask=self.plan.masks(positions, padding, self.max_length + 1, self.model.dtype),
            position_ids=positions.masked_fill(padding, 0),
            past_key_values=PositionedCache(cache, positions.masked_fill(padding, self.max_length)),
            use_cache=True,
            **self._keep(ids.shape[1]),
        )
        logits: Tensor = output.logits
        if ids.shape[1] > self.scored_width:
            logits = logits[:, -1:]
        return logits.float()

    def _keep(self, width: int) -> dict[str, int]:
        # The head is what a wide prefill would spend most on; the model skips it where it can.
        return {"logits_to_keep": 1} if self._keeps_logits and width > self.scored_width else {}
