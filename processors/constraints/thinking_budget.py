"""Thinking budget: a token limit for thinking sections."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.token_occurrences import last_tokens, sequence_ends
from ..parameter import as_integers, as_token_sequence, at_least_one, index_of, integer, is_scalar, per_row
from .masking import keep_only


def _as_budget(budget: int | Tensor | None) -> int | Tensor:
    return as_integers(-1 if budget is None else budget)


@attrs.frozen(eq=False)
class ThinkingBudget(Composable):
    """
    Force the end of a thinking section once it holds *budget* tokens.

    A section begins after *start*, the first one since the last *end*. It may begin in the prompt,
    whose tokens then count. *end* is forced token by token; if the section's last tokens are
    already a prefix of *end*, that prefix is completed. A closed section is left alone; each
    section has its own budget. Budget 0 closes at once; no-op at -1 or None (unlimited).

    *end* must be what the model writes at the end of a section: a section closed in another way
    is closed again. The forced token keeps its logit. A hard constraint: it leaves a row without a
    token if that token was forbidden before.

    As in llama.cpp (reasoning budget), vLLM and TensorRT-LLM (thinking token budget), which
    keep state; this is a function of the history.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    budget: int | Tensor = attrs.field(
        converter=_as_budget, validator=integer(">= -1 (-1 is unlimited)", lambda budget: budget >= -1)
    )
    """In tokens. One for all rows, or ``[batch]``."""

    start: tuple[int, ...] = attrs.field(converter=as_token_sequence, validator=at_least_one)
    """Token or token sequence that opens a section."""

    end: tuple[int, ...] = attrs.field(converter=as_token_sequence, validator=at_least_one)
    """Token or token sequence that closes a section."""

    _end: Tensor = attrs.field(init=False, repr=False)

    @end.validator
    def _check_that_they_differ(self, attribute: "attrs.Attribute[tuple[int, ...]]", end: object) -> None:
        if end == self.start:
            raise ValueError(f"'start' and 'end' must differ: got {self.start} for both")

    @_end.default
    def _make_end(self) -> Tensor:
        return torch.tensor(self.end, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Force the end in ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.budget, -1):
            return logits
        end = index_of(self.end, logits, self._end)
        budget = per_row("budget", self.budget, logits)
        thought = self._thought(history)
        forced = keep_only(logits, end.gather(-1, self._progress(history, thought)))
        return torch.where((thought >= budget) & (budget >= 0), forced, logits)

    def _thought(self, history: History) -> Tensor:
        """``[batch, width, 1]``: number of tokens in the open section; below 0 if none is open."""
        valid = history.valid()
        capacity = valid.shape[-1]
        slots = torch.arange(capacity, device=valid.device)
        ended = sequence_ends(self.end, history.ids) & valid
        last_end = torch.where(ended, slots, -1).amax(dim=-1, keepdim=True)
        began = sequence_ends(self.start, history.ids) & valid & (slots > last_end)
        opened = torch.where(began, slots, capacity).amin(dim=-1, keepdim=True)
        return history.length[..., None] - opened - 1

    def _progress(self, history: History, thought: Tensor) -> Tensor:
        """``[batch, width, 1]``: length of the longest prefix of *end* that ends the section."""
        end = self._end.to(history.ids.device)
        most = len(self.end) - 1
        last = last_tokens(history.ids, history, most)
        progress = torch.zeros_like(thought)
        for n in range(1, most + 1):
            alike = (last[..., most - n :] == end[:n]).all(dim=-1, keepdim=True)
            progress = torch.where(alike & (thought >= n), n, progress)
        return progress
