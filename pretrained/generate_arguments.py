"""What transformers' ``generate`` hands to a custom function, as parts of a generator."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria

from ..decoding import EndOfSequence, MaxNewTokens, stop_from_transformers
from ..decoding.protocols import Processor, StopCondition
from ..processors import Chain, GenerationParts, from_generation_config
from ..processors.interop.generation_fields import STAGES

_DEFAULT_NEW_TOKENS = 20
"""Of ``generate``."""

_AFTER_CUSTOM = tuple(
    kind
    for stage in STAGES
    if stage.only_sampling or stage.field in ("watermarking_config", "renormalize_logits")
    for kind in stage.kinds
)
"""Stages that transformers puts after the processors that ``generate`` is given."""


def rows_of(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """
    The prompts without their padding.

    Raises:
        ValueError: The mask has another shape, or pads on the right.
    """
    if attention_mask is None:
        rows: list[list[int]] = input_ids.tolist()
        return rows
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"'attention_mask' must have the shape of 'input_ids', {list(input_ids.shape)}: "
            f"got {list(attention_mask.shape)}"
        )
    seen = attention_mask != 0
    if not bool(seen[:, -1].all()):
        raise ValueError(
            "'attention_mask' must be 1 in the last column, as padding_side='left' of a tokenizer makes it: "
            f"got {attention_mask[:, -1].tolist()}"
        )
    return [row[mask].tolist() for row, mask in zip(input_ids, seen, strict=True)]


def check_length(rows: Sequence[Sequence[int]], new: int, max_length: int) -> None:
    """
    Check that *new* tokens after each prompt fit a decoder of *max_length* positions.

    Raises:
        ValueError: They do not: ``generate`` would go on where a generator ends the row.
    """
    # The last token need not be fed.
    if (whole := max(map(len, rows)) + new) > max_length + 1:
        raise ValueError(
            f"prompt and new tokens must be at most {max_length + 1}, one more than the decoder's "
            f"max_length: got {whole}"
        )


def parts_of(config: Any, columns: int, sampling: bool) -> GenerationParts:
    """
    The parts of a config that ``generate`` has prepared.

    Args:
        config: The prepared config.

        columns: Those of the prompts, padding included, which its lengths count.

        sampling: Whether to read temperature and filters.

    Raises:
        ValueError: A field cannot be mapped.
    """
    own = copy.copy(config)
    own.do_sample = sampling
    # Prompts have no padding here: what counts is the new tokens.
    own.max_new_tokens, own.max_length = max(config.max_length - columns, 1), None
    if config.min_length:
        own.min_new_tokens, own.min_length = max(config.min_length - columns, 0), None
    # generate has repeated the prompts.
    own.num_return_sequences = None
    return from_generation_config(own, ignore=[name for name in vars(own) if name.startswith("_")])


def custom_processors(
    model: Any, config: Any, prepared: Sequence[Any], input_ids: Tensor, model_kwargs: Mapping[str, Any]
) -> list[Any]:
    """
    Those of the *prepared* processors that do not come from the config, which transformers makes again.

    Raises:
        ValueError: One replaces the config's own of its type.
    """
    own = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=input_ids.shape[1],
        encoder_input_ids=input_ids,
        device=input_ids.device,
        model_kwargs=model_kwargs,
    )
    kinds = {type(one): one for one in own}
    custom = []
    for one in prepared:
        if (same := kinds.get(type(one))) is None:
            custom.append(one)
        elif not _alike(one, same):
            raise ValueError(
                f"'logits_processor' must not have what the generation config sets too: got {one!r}. Set the "
                "option alone"
            )
    return custom


def joined(parts: GenerationParts, custom: Sequence[Processor]) -> Processor:
    """The config's stages with *custom* ones where transformers puts them: before temperature and filters."""
    stages = parts.processors.processors
    first = next((n for n, one in enumerate(stages) if isinstance(one, _AFTER_CUSTOM)), len(stages))
    return Chain((*stages[:first], *custom, *stages[first:]))


def asks_for_length(config: Any, columns: int) -> bool:
    """Whether the maximum length of a prepared *config* is not the default, *columns* and 20 new tokens."""
    return config.max_new_tokens is not None or config.max_length != columns + _DEFAULT_NEW_TOKENS


def stop_of(
    criteria: Sequence[Any], columns: int, stop: StopCondition | None, limited: bool
) -> StopCondition:
    """
    The stop condition of prepared *criteria*.

    Args:
        criteria: Those of the config and those that ``generate`` was given.

        columns: Those of the prompts, padding included.

        stop: A further one; None for none.

        limited: Whether their maximum length counts.

    Raises:
        TypeError: One is no criterion.

        ValueError: One depends on more than its arguments.
    """
    others: list[Any] = []
    found: Any = None
    for one in criteria:
        if type(one) is MaxLengthCriteria:
            if limited:
                found = MaxNewTokens(max(one.max_length - columns, 1))
        elif type(one) is EosTokenCriteria:
            others.append(EndOfSequence(one.eos_token_id.tolist()))
        else:
            others.append(stop_from_transformers(one))
    if stop is not None:
        others.append(stop)
    for one in reversed(others):
        found = one if found is None else one | found
    result: StopCondition = found
    return result


def padding_token(config: Any) -> int | None:
    """The token that pads shorter rows: the config's, or its first end of sequence."""
    ends = config.eos_token_id
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    if isinstance(ends, Sequence):
        return int(ends[0]) if ends else None
    return None if ends is None else int(ends)


def sequences(input_ids: Tensor, new: Sequence[Sequence[int]], padding: int | None) -> Tensor:
    """
    Prompts and new tokens ``[rows, columns]`` int64, as ``generate`` returns them.

    Raises:
        ValueError: Rows have different lengths, and there is no token to pad them with.
    """
    longest = max(map(len, new))
    if padding is None and any(len(row) < longest for row in new):
        raise ValueError(
            "'pad_token_id' must be set where rows may end at different lengths: got None, and rows of "
            f"{[len(row) for row in new]} new tokens"
        )
    added = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in new], dtype=torch.int64)
    return torch.cat([input_ids, added.to(input_ids.device)], dim=1)


def _alike(one: Any, other: Any) -> bool:
    """Whether two processors of a type have the same parameters."""
    ours, theirs = vars(one), vars(other)
    return ours.keys() == theirs.keys() and all(_equal(ours[name], theirs[name]) for name in ours)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, torch.Generator):  # a watermark's, seeded in each call
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool(one == other)
