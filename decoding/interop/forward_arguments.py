"""Checks of what transformers gives to a model's forward."""

from typing import Any

import torch
from torch import Tensor

from ..validation import is_whole
from .cache_name import CACHE
from .token_cache import TokenCache


def cache_of(given: Any) -> TokenCache:
    """*given*, or a new record for None; raises ``TypeError`` for a model's own cache."""
    if given is None:
        return TokenCache()
    if not isinstance(given, TokenCache):
        raise TypeError(
            f"'{CACHE}' must be what a TransformersModel returned: got "
            f"{type(given).__name__}; the decoder keeps keys and values itself"
        )
    return given


def given_cache(cache: Any, past_key_values: Any) -> Any:
    """The cache under either of its names; raises ``ValueError`` for both."""
    if cache is not None and past_key_values is not None:
        raise ValueError("'cache' and 'past_key_values' are one argument: got both")
    return past_key_values if cache is None else cache


def ids_of(input_ids: Any) -> Tensor:
    """*input_ids* ``[rows, columns]`` as int64 on the host; raises ``TypeError`` or ``ValueError``."""
    if not isinstance(input_ids, Tensor) or input_ids.is_floating_point() or input_ids.is_complex():
        raise TypeError(f"'input_ids' must be a tensor of whole numbers: got {input_ids!r:.80}")
    if input_ids.ndim != 2 or not input_ids.numel():
        raise ValueError(
            f"'input_ids' must be [rows, columns], at least one of each: got {list(input_ids.shape)}"
        )
    return input_ids.cpu().long()


def shown_by(attention_mask: Tensor | None, ids: Tensor) -> Tensor:
    """Which of *ids* are no padding, ``[rows, columns]`` bool; raises ``ValueError`` for another shape."""
    if attention_mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    if attention_mask.shape != ids.shape:
        raise ValueError(
            f"'attention_mask' must be {list(ids.shape)}, [rows, columns] with those of the cache: "
            f"got {list(attention_mask.shape)}"
        )
    return attention_mask.cpu() != 0


def check_ids(ids: Tensor, vocab_size: int) -> None:
    """Raise ``ValueError`` unless *ids*, those of padding left out, are of the vocabulary."""
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ValueError(
            f"'input_ids' must be >= 0 and < {vocab_size}, where 'attention_mask' is 1: got ids from "
            f"{int(ids.min())} to {int(ids.max())}"
        )


def check_positions(position_ids: Tensor | None, seen: Tensor, columns: int) -> None:
    """Raise ``ValueError`` unless the positions of the last *columns* are those that follow from *seen*."""
    if position_ids is None:
        return
    expected, new = seen.long().cumsum(dim=1)[:, -columns:] - 1, seen[:, -columns:]
    if position_ids.shape[-1] != columns or not bool((position_ids.cpu() == expected)[new].all()):
        raise ValueError(
            "'position_ids' must count the tokens that the attention mask shows, from 0: got "
            f"{position_ids.tolist()!r:.80}"
        )


def columns_kept(logits_to_keep: Any, columns: int) -> int:
    """How many of *columns* to score, 0 being all; raises ``ValueError`` for no such number."""
    if not is_whole(logits_to_keep) or logits_to_keep < 0:
        raise ValueError(f"'logits_to_keep' must be a whole number >= 0: got {logits_to_keep!r}")
    return min(int(logits_to_keep), columns) or columns
