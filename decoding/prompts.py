"""Conversion and validation of prompts."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .chat import chat_ids, is_chat
from .history import History
from .protocols import DecoderShape
from .validation import check_unicode, is_whole


def as_rows(
    prompts: Any,
    shape: DecoderShape,
    tokenizer: Any = None,
    any_number: bool = False,
    start: int | None = None,
) -> list[list[int]]:
    """
    Prompts as one list of ids each, checked against the decoder.

    Args:
        prompts: One list of ids, a list of them, an integer array ``[batch, length]`` or ``[length]`` (torch
            or numpy), or a mapping with ``input_ids`` and maybe an ``attention_mask``, such as a tokenizer's
            ``BatchEncoding`` (other keys are not read). With a *tokenizer* also a string, a chat (a list of
            messages, ``{"role": ..., "content": ...}``), or a list of these. With a *start* also None.

        shape: What the decoder was compiled for.

        tokenizer: Encodes strings and chats.

        any_number: Whether there may be more prompts than the decoder has rows.

        start: The token of a prompt that has none; None to refuse it.

    Raises:
        TypeError: Another type.

        ValueError: No prompt, an empty prompt, more prompts than the decoder has rows unless there may be
            *any_number*, one that does not fit, or an id outside the vocabulary.
    """
    if start is None:
        rows = _rows(prompts, tokenizer)
    else:
        rows = [row or [start] for row in ([[]] if prompts is None else _rows(prompts, tokenizer))]
    if not rows and any_number:
        raise ValueError("'prompts' must be 1 or more: got 0")
    if not rows or (len(rows) > shape.batch_size and not any_number):
        hint = f". Compile it with batch_size={len(rows)}" if rows else ""
        raise ValueError(
            f"'prompts' must be 1 to {shape.batch_size}, the decoder's rows: got {len(rows)}{hint}"
        )
    for number, row in enumerate(rows):
        if not 1 <= len(row) <= shape.max_length:
            raise ValueError(
                f"prompt {number} must have 1 to {shape.max_length} tokens, the decoder's max_length: "
                f"got {len(row)}"
            )
        for token in row:
            if not 0 <= token < shape.vocab_size:
                raise ValueError(
                    f"the ids of prompt {number} must be 0 to {shape.vocab_size - 1}, the vocabulary: "
                    f"got {token}"
                )
    return rows


def first_history(rows: list[list[int]], stream: torch.Tensor, capacity: int) -> History:
    """The history of *rows* before their first new token, of width 1, with room for *capacity* ids."""
    ids = torch.zeros(len(rows), 1, capacity, dtype=torch.int64)
    for row, prompt in enumerate(rows):
        ids[row, 0, : len(prompt)] = torch.tensor(prompt)
    length = torch.tensor([len(prompt) for prompt in rows])
    return History(ids, length[:, None], length, stream)


def _rows(prompts: Any, tokenizer: Any) -> list[list[int]]:
    if isinstance(prompts, str):
        return [_row(prompts, tokenizer)]
    if isinstance(prompts, torch.Tensor | np.ndarray):
        return _array_rows(np.asarray(prompts))
    if isinstance(prompts, Mapping):
        return _encoded_rows(prompts)
    if is_chat(prompts):
        return [chat_ids(prompts, tokenizer)]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise TypeError(
            "'prompts' must be a text, a chat, ids, a list of these, an integer array, or what a tokenizer "
            f"returns: got {type(prompts).__name__}"
        )
    if prompts and all(is_whole(item) for item in prompts):
        return [[int(item) for item in prompts]]
    return [_row(item, tokenizer) for item in prompts]


def _row(prompt: Any, tokenizer: Any) -> list[int]:
    if prompt is None:
        return []
    if isinstance(prompt, str):
        if tokenizer is None:
            raise TypeError(
                "a prompt must be ids where there is no tokenizer (pass tokenizer=): "
                f"got the string {prompt[:40]!r}"
            )
        if not callable(tokenizer):
            raise TypeError(
                "a prompt must be ids where the generator's tokenizer cannot be called with a text: "
                f"got the string {prompt[:40]!r}"
            )
        return _encoded(prompt, tokenizer)
    if is_chat(prompt):
        return chat_ids(prompt, tokenizer)
    if isinstance(prompt, Mapping):
        rows = _encoded_rows(prompt)
        if len(rows) == 1:
            return rows[0]
        raise ValueError(f"a prompt in a list must be one row of 'input_ids': got {len(rows)}")
    if isinstance(prompt, torch.Tensor | np.ndarray):
        rows = _array_rows(np.asarray(prompt))
        if len(rows) == 1:
            return rows[0]
    elif isinstance(prompt, Sequence) and all(is_whole(item) for item in prompt):
        return [int(item) for item in prompt]
    raise TypeError(f"a prompt must be a list of ids, a text or a chat: got {prompt!r:.80}")


def _encoded(text: str, tokenizer: Any) -> list[int]:
    check_unicode(text)
    ids = list(tokenizer(text)["input_ids"])
    # A tokenizer need only decode and encode.
    begin = getattr(tokenizer, "bos_token_id", None)
    if begin is not None and ids[:2] == [begin, begin] and list(tokenizer("")["input_ids"])[:1] == [begin]:
        warnings.warn(
            "a text that begins with the tokenizer's own first token should be given as ids: "
            f"got {text[:40]!r}, before which the tokenizer puts another (a chat template's text is encoded "
            "with add_special_tokens=False, or by apply_chat_template(..., return_dict=True))",
            stacklevel=2,
        )
    return ids


def _encoded_rows(encoded: Mapping[str, Any]) -> list[list[int]]:
    """The ids of a tokenizer's output, without what its attention mask leaves out."""
    if "input_ids" not in encoded:
        hint = " (a chat is a list of messages)" if "role" in encoded else ""
        if "inputs_embeds" in encoded:
            hint = ", for a decoder is fed token ids; embeddings need the stock model"
        raise TypeError(f"a mapping as prompt must have 'input_ids'{hint}: got the keys {list(encoded)}")
    rows = _rows(encoded["input_ids"], None)
    if encoded.get("attention_mask") is None:
        return rows
    masks = _rows(encoded["attention_mask"], None)
    if [len(mask) for mask in masks] != [len(row) for row in rows]:
        raise ValueError(
            "'attention_mask' must have the shape of 'input_ids': got rows of "
            f"{[len(mask) for mask in masks]} and {[len(row) for row in rows]}"
        )
    return [unpadded(row, mask) for row, mask in zip(rows, masks, strict=True)]


def unpadded(row: list[int], mask: list[int]) -> list[int]:
    """
    The tokens of *row* where *mask* is 1.

    Raises:
        ValueError: The ones are not next to each other.
    """
    real = [column for column, seen in enumerate(mask) if seen]
    if not set(mask) <= {0, 1} or (real and len(real) != real[-1] - real[0] + 1):
        raise ValueError(
            "a row of 'attention_mask' must be ones, with zeros for padding before or after them: "
            f"got {mask!r:.80}"
        )
    return row[real[0] : real[-1] + 1] if real else []


def _array_rows(array: Any) -> list[list[int]]:
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"'prompts' must be an integer array: got {array.dtype}")
    if array.ndim not in (1, 2):
        raise ValueError(
            f"'prompts' must have the shape [batch, length] or [length]: got {list(array.shape)}"
        )
    return [[int(token) for token in row] for row in np.atleast_2d(array)]
