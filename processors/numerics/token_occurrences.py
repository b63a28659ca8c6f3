"""The logits of tokens that occur in the history."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...decoding.history import History
from ..parameter import per_row


def seen_slots(history: History, logits: Tensor, include_prompt: bool, window: int | Tensor | None) -> Tensor:
    """
    Which slots of the history a penalty looks at.

    Args:
        history: The tokens before each column.

        logits: ``[batch, width, vocab]``, for the number of rows.

        include_prompt: Whether the prompt's tokens count.

        window: How many of the last tokens count, prompt or not: None for all, one number for
            all rows, or ``[batch]``. What it reaches of the prompt still has to be included.

    Returns:
        ``[batch, width, capacity]`` bool.
    """
    slots = history.valid() if include_prompt else history.generated()
    if window is None:
        return slots
    first = history.length[..., None] - per_row("window", window, logits)
    return slots & (torch.arange(slots.shape[-1], device=slots.device) >= first)


def slot_weights(
    history: History,
    logits: Tensor,
    include_prompt: bool,
    window: int | Tensor | None,
    fade: int | Tensor,
) -> Tensor:
    """
    How much each slot of the history counts, where a penalty fades out with the distance.

    A token counts wholly up to *window* tokens back; of a farther one, the share falls by one
    part in *fade* with each token more, down to nothing.

    Args:
        history: The tokens before each column.

        logits: ``[batch, width, vocab]``, for the number of rows and the dtype.

        include_prompt: Whether the prompt's tokens count.

        window: One number for all rows, or ``[batch]``.

        fade: At least 1 where it matters: one number for all rows, or ``[batch]``.

    Returns:
        ``[batch, width, capacity]``, 0 to 1.
    """
    slots = history.valid() if include_prompt else history.generated()
    reach = 0 if window is None else per_row("window", window, logits)
    distance = history.length[..., None] - torch.arange(slots.shape[-1], device=slots.device)
    beyond = (distance - reach).clamp(min=0).to(logits.dtype)
    steps = per_row("fade", fade, logits)
    # Without a fade, the window is all there is.
    steps = torch.where(steps > 0, steps, 1) if isinstance(steps, Tensor) else max(steps, 1)
    return (1 - beyond / steps).clamp(min=0) * slots


def prompt_slots(history: History) -> Tensor:
    """``[batch, width, capacity]`` bool: where the prompt's tokens stand."""
    return history.valid() & ~history.generated()


def last_tokens(ids: Tensor, history: History, n: int) -> Tensor:
    """
    The last *n* tokens before each column.

    Args:
        ids: ``[batch, paths or width, capacity]``, the history's or what has been made of them.

        history: The tokens before each column.

        n: How many.

    Returns:
        ``[batch, width, n]``, the newest last; -1 in front of the first token.
    """
    slots = history.length[..., None] + torch.arange(-n, 0, device=ids.device)
    last = ids.expand(-1, slots.shape[1], -1).gather(-1, slots.clamp(min=0))
    return last.masked_fill(slots < 0, -1)


def sequence_ends(sequence: Sequence[int], ids: Tensor) -> Tensor:
    """Where the last token of *sequence* stands in *ids*, a bool tensor of their shape."""
    before = len(sequence) - 1
    padded = pad(ids, (before, 0), value=-1)
    found = torch.ones_like(ids, dtype=torch.bool)
    for offset, token in enumerate(sequence):
        found = found & (padded[..., offset : offset + ids.shape[-1]] == token)
    return found


def match_lengths(history: History, counting: Tensor, most: int) -> Tensor:
    """
    How many tokens in front of each slot are the column's last ones, in their order.

    Args:
        history: The tokens before each column.

        counting: ``[batch, width, capacity]`` bool: slots that may take part. The others equal
            nothing, so no match goes across them.

        most: Where to stop counting. The work grows with it, the memory does not.

    Returns:
        ``[batch, width, capacity]`` int64, 0 to *most*, 0 beyond the column's length.
    """
    capacity = counting.shape[-1]
    most = min(most, capacity)
    ids = torch.where(counting, history.ids, -1)
    last = last_tokens(ids, history, most)
    last = last.masked_fill(last < 0, -2)  # unlike any slot, those that do not count included
    padded = pad(ids, (most, 0), value=-1)
    alike = history.valid()
    lengths = torch.zeros_like(ids)
    for back in range(1, most + 1):
        before = padded[..., most - back : most - back + capacity]
        alike = alike & (before == last[..., most - back, None])
        lengths = lengths + alike
    return lengths


def apply_to_tokens(
    logits: Tensor,
    history: History,
    slots: Tensor,
    formula: Callable[[Tensor], Tensor],
    out: Tensor | None = None,
) -> Tensor:
    """
    Apply *formula* to the logits of the tokens in *slots*, once to each token.

    Args:
        logits: ``[batch, width, vocab]``, not modified.

        history: The tokens before each column.

        slots: Which slots of the history count, ``[batch, width, capacity]`` bool.

        formula: Logits ``[batch, width, capacity]`` to new ones, elementwise.

        out: Where to write, if not to a new tensor: shaped as the logits, or they themselves.

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
    return _scattered(logits, ids, after, out)


def forbid_tokens(logits: Tensor, history: History, slots: Tensor, out: Tensor | None = None) -> Tensor:
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
    return _scattered(logits, torch.where(slots, ids, first), value.expand(slots.shape), out)


def count_tokens(logits: Tensor, history: History, slots: Tensor) -> Tensor:
    """
    How often each token stands in *slots*.

    Args:
        logits: ``[batch, width, vocab]``, for their shape and dtype.

        history: The tokens before each column.

        slots: Which slots of the history count, ``[batch, width, capacity]`` bool, or how much
            each does.

    Returns:
        ``[batch, width, vocab]`` in the dtype of the logits. Of bools, whole numbers: the sum
        does not depend on the order in which a device adds them.
    """
    scored = _scored(slots > 0, history, logits)
    ids = torch.where(scored, history.ids, 0)
    return torch.zeros_like(logits).scatter_add(-1, ids, torch.where(scored, slots.to(logits.dtype), 0))


def largest_per_token(logits: Tensor, history: History, slots: Tensor, values: Tensor) -> Tensor:
    """
    The largest of the *values* in a token's slots.

    Args:
        logits: ``[batch, width, vocab]``, for their shape and dtype.

        history: The tokens before each column.

        slots: Which slots of the history count, ``[batch, width, capacity]`` bool.

        values: ``[batch, width, capacity]`` in the dtype of the logits, >= 0.

    Returns:
        ``[batch, width, vocab]``, 0 for tokens in none of the slots.
    """
    slots = _scored(slots, history, logits)
    ids = torch.where(slots, history.ids, 0)
    return torch.zeros_like(logits).scatter_reduce(-1, ids, values.masked_fill(~slots, 0.0), "amax")


def _scattered(logits: Tensor, ids: Tensor, values: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        return logits.scatter(-1, ids, values)
    return (out if out is logits else out.copy_(logits)).scatter_(-1, ids, values)


def _scored(slots: Tensor, history: History, logits: Tensor) -> Tensor:
    # An embedding may know more ids than the head scores; those have no logit to change.
    return slots & (history.ids >= 0) & (history.ids < logits.shape[-1])
