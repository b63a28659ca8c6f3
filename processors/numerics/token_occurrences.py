"""Slots of the history, and the logits of the tokens in them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...decoding.history import History
from ..parameter import per_row


def seen_slots(history: History, logits: Tensor, include_prompt: bool, window: int | Tensor | None) -> Tensor:
    """
    Slots of the history that count.

    Args:
        history: The tokens before each column.

        logits: ``[batch, width, vocab]``, for the number of rows.

        include_prompt: Whether the prompt's tokens count.

        window: Number of last tokens that count: None for all, one number for all rows, or
            ``[batch]``. Prompt tokens in it count only with *include_prompt*.

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
    Weight of each slot of the history for a penalty that fades out with the distance.

    The weight is 1 up to *window* tokens back and falls by 1 / *fade* with each further token,
    down to 0.

    Args:
        history: The tokens before each column.

        logits: ``[batch, width, vocab]``, for the number of rows and the dtype.

        include_prompt: Whether the prompt's tokens count.

        window: One number for all rows, or ``[batch]``.

        fade: One number for all rows, or ``[batch]``; 0 in a row means no fade.

    Returns:
        ``[batch, width, capacity]``, 0 to 1.
    """
    slots = history.valid() if include_prompt else history.generated()
    reach = 0 if window is None else per_row("window", window, logits)
    distance = history.length[..., None] - torch.arange(slots.shape[-1], device=slots.device)
    beyond = (distance - reach).clamp(min=0).to(logits.dtype)
    steps = per_row("fade", fade, logits)
    # Without a fade, only the window counts.
    steps = torch.where(steps > 0, steps, 1) if isinstance(steps, Tensor) else max(steps, 1)
    return (1 - beyond / steps).clamp(min=0) * slots


def prompt_slots(history: History) -> Tensor:
    """Slots of the prompt, ``[batch, width, capacity]`` bool."""
    return history.valid() & ~history.generated()


def last_tokens(ids: Tensor, history: History, n: int, include_prompt: bool = True) -> Tensor:
    """
    The last *n* tokens before each column.

    Args:
        ids: ``[batch, paths or width, capacity]``, the history's, possibly masked.

        history: The tokens before each column.

        n: Number of tokens.

        include_prompt: Whether tokens of the prompt are among them.

    Returns:
        ``[batch, width, n]``, the newest last; -1 before the first token.
    """
    slots = history.length[..., None] + torch.arange(-n, 0, device=ids.device)
    last = ids.expand(-1, slots.shape[1], -1).gather(-1, slots.clamp(min=0))
    first = 0 if include_prompt else history.prompt[:, None, None]
    return last.masked_fill(slots < first, -1)


def sequence_ends(sequence: Sequence[int], ids: Tensor) -> Tensor:
    """True at each slot of *ids* where *sequence* ends; a bool tensor of the shape of *ids*."""
    before = len(sequence) - 1
    padded = pad(ids, (before, 0), value=-1)
    found = torch.ones_like(ids, dtype=torch.bool)
    for offset, token in enumerate(sequence):
        found = found & (padded[..., offset : offset + ids.shape[-1]] == token)
    return found


def match_lengths(history: History, counting: Tensor, most: int) -> Tensor:
    """
    Length of the match between the tokens before each slot and the column's last tokens.

    Args:
        history: The tokens before each column.

        counting: ``[batch, width, capacity]`` bool: slots that may be part of a match. No match
            crosses the others.

        most: Longest match counted. Time grows with it, memory does not.

    Returns:
        ``[batch, width, capacity]`` int64, 0 to *most*, 0 beyond the column's length.
    """
    capacity = counting.shape[-1]
    most = min(most, capacity)
    ids = torch.where(counting, history.ids, -1)
    last = last_tokens(ids, history, most)
    last = last.masked_fill(last < 0, -2)  # differs from every slot, also from those that do not count
    padded = pad(ids, (most, 0), value=-1)
    alike = history.valid()
    lengths = torch.zeros_like(ids)
    for back in range(1, most + 1):
        before = padded[..., most - back : most - back + capacity]
        alike = alike & (before == last[..., most - back, None])
        lengths = lengths + alike
    return lengths


def repeated_ngram_ends(
    history: History,
    logits: Tensor,
    n: int | Tensor,
    include_prompt: bool,
    window: int | Tensor | None,
    largest: int,
) -> Tensor:
    """
    Last slots of the *n*-grams whose first n - 1 tokens are the column's last ones.

    Args:
        history: The tokens before each column.

        logits: As for :func:`seen_slots`, like *include_prompt* and *window*.

        n: One number for all rows, or ``[batch]``; 0 in a row finds none.

        include_prompt: See there.

        window: See there.

        largest: The largest *n*, which a graph needs as a constant.

    Returns:
        ``[batch, width, capacity]`` bool.
    """
    size = per_row("n", n, logits)
    slots = seen_slots(history, logits, include_prompt, window)
    return (size > 0) & slots & (match_lengths(history, slots, largest - 1) >= size - 1)


def apply_to_tokens(
    logits: Tensor,
    history: History,
    slots: Tensor,
    formula: Callable[[Tensor], Tensor],
    out: Tensor | None = None,
) -> Tensor:
    """
    Apply *formula* once to the logit of each token in *slots*.

    Args:
        logits: ``[batch, width, vocab]``, not modified.

        history: The tokens before each column.

        slots: Slots of the history that count, ``[batch, width, capacity]`` bool.

        formula: Elementwise function of logits ``[batch, width, capacity]``.

        out: Output of the logits' shape, possibly the logits themselves; a new tensor if None.

    Returns:
        ``[batch, width, vocab]``.
    """
    slots = _scored(slots, history, logits)
    # The scatter has a fixed shape and also writes for slots that do not count. Those are
    # redirected to a token that does; writing the same value twice is harmless.
    counting = torch.where(slots, history.ids, 0).amax(dim=-1, keepdim=True)
    ids = torch.where(slots, history.ids, counting)
    before = logits.gather(-1, ids)
    after = torch.where(slots.any(dim=-1, keepdim=True), formula(before), before)
    return _scattered(logits, ids, after, out)


def forbid_tokens(logits: Tensor, history: History, slots: Tensor, out: Tensor | None = None) -> Tensor:
    """
    Mask the tokens in *slots*; arguments as for :func:`apply_to_tokens`.

    Returns:
        ``[batch, width, vocab]``.
    """
    slots = _scored(slots, history, logits)
    # As above: slots that do not count repeat the write of one that does.
    ids = torch.where(slots, history.ids, 0)
    first = ids.amax(dim=-1, keepdim=True)
    value = logits.gather(-1, first).masked_fill(slots.any(dim=-1, keepdim=True), -torch.inf)
    return _scattered(logits, torch.where(slots, ids, first), value.expand(slots.shape), out)


def count_tokens(logits: Tensor, history: History, slots: Tensor) -> Tensor:
    """
    Number of occurrences of each token in *slots*.

    Args:
        logits: ``[batch, width, vocab]``, for their shape and dtype.

        history: The tokens before each column.

        slots: Slots of the history that count, ``[batch, width, capacity]`` bool, or their weights.

    Returns:
        ``[batch, width, vocab]`` in the dtype of the logits. For bool *slots* these
        are integers, so the sum does not depend on the device's order.
    """
    scored = _scored(slots > 0, history, logits)
    ids = torch.where(scored, history.ids, 0)
    return torch.zeros_like(logits).scatter_add(-1, ids, torch.where(scored, slots.to(logits.dtype), 0))


def largest_per_token(logits: Tensor, history: History, slots: Tensor, values: Tensor) -> Tensor:
    """
    Largest of the *values* in each token's slots.

    Args:
        logits: ``[batch, width, vocab]``, for their shape and dtype.

        history: The tokens before each column.

        slots: Slots of the history that count, ``[batch, width, capacity]`` bool.

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
    # An embedding may be larger than the output head; ids beyond it have no logit.
    return slots & (history.ids >= 0) & (history.ids < logits.shape[-1])
