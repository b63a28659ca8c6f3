"""The logits of tokens that occur in the history."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..decoding.history import History


def rewrite(logits: Tensor, history: History, slots: Tensor, formula: Callable[[Tensor], Tensor]) -> Tensor:
    """
    Apply *formula* to the logits of the tokens in *slots*, once to each token.

    Args:
        logits: ``[batch, width, vocab]``, not modified.

        history: The tokens before each column.

        slots: Which slots of the history count, ``[batch, width, capacity]`` bool.

        formula: Logits ``[batch, width, capacity]`` to new ones, elementwise.

    Returns:
        ``[batch, width, vocab]``.
    """
    slots = _scored(slots, history, logits)
    # The scatter has a fixed shape and also writes for the slots that do not count. They point
    # at a token that does: the same value written twice changes nothing.
    counting = torch.where(slots, history.ids, 0).amax(dim=-1, keepdim=True)
    ids = torch.where(slots, history.ids, counting)
    before = logits.gather(-1, ids)
    after = torch.where(slots.any(dim=-1, keepdim=True), formula(before), before)
    return logits.scatter(-1, ids, after)


def forbid(logits: Tensor, history: History, slots: Tensor) -> Tensor:
    """
    Mask the tokens in *slots*; arguments as of :func:`rewrite`.

    Returns:
        ``[batch, width, vocab]``.
    """
    slots = _scored(slots, history, logits)
    # As above: slots that do not count write what a slot that does writes as well.
    ids = torch.where(slots, history.ids, 0)
    first = ids.amax(dim=-1, keepdim=True)
    value = logits.gather(-1, first).masked_fill(slots.any(dim=-1, keepdim=True), -torch.inf)
    return logits.scatter(-1, torch.where(slots, ids, first), value.expand(slots.shape))


def count(logits: Tensor, history: History, slots: Tensor) -> Tensor:
    """
    How often each token stands in *slots*.

    Args:
        logits: ``[batch, width, vocab]``, for their shape and dtype.

        history: The tokens before each column.

        slots: Which slots of the history count, ``[batch, width, capacity]`` bool.

    Returns:
        ``[batch, width, vocab]`` in the dtype of the logits: whole numbers, so the sum does not
        depend on the order in which a device adds them.
    """
    slots = _scored(slots, history, logits)
    ids = torch.where(slots, history.ids, 0)
    return torch.zeros_like(logits).scatter_add(-1, ids, slots.to(logits.dtype))


def _scored(slots: Tensor, history: History, logits: Tensor) -> Tensor:
    # An embedding may know more ids than the head scores; those have no logit to change.
    return slots & (history.ids >= 0) & (history.ids < logits.shape[-1])
