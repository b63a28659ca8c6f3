"""Conversion of processors to a ``transformers.LogitsProcessor``."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from ...decoding.history import History
from ...decoding.protocols import Processor
from ...decoding.sampling import noise
from ...decoding.validation import a_whole_number
from ..parameter import a_callable


def to_transformers(
    chain: Processor,
    *,
    prompt_length: int | None = None,
    pad_token_id: int | None = None,
    attention_mask: Tensor | None = None,
    seed: int = 0,
    random_streams: Sequence[int] | None = None,
) -> Any:
    """
    Wrap *chain* as a ``transformers.LogitsProcessor``, for ``generate(logits_processor=[...])``.

    It runs after the penalties and constraints of the generation config and before its temperature
    and filters. The history of a row excludes its left padding, so a row does not depend on its
    batch.

    ``generate`` does not pass the prompt length, so it is taken from the first call of a run. A call
    starts a new run if its ids do not begin with the last run's prompt, are shorter than it, or are
    more than one column longer than any call of that run. A prompt equal to the last run's text or
    a prefix of it is not recognised as new: in that case, or in doubt, give *prompt_length* or make
    a new object.

    Args:
        chain: A processor or a chain of them. Per-row parameters apply to the rows that
            ``generate`` decodes.

        prompt_length: Columns of the prompt, padding included. The object is then stateless.

        pad_token_id: Padding token of short prompts. Every leading one counts as padding; if a
            prompt may begin with that token, give *attention_mask* instead.

        attention_mask: As passed to ``generate``, ``[batch, columns]``, 0 for left padding.

        seed: Seed of processors that draw random numbers.

        random_streams: Random stream of each row; None for 0, 1, 2, ...

    Raises:
        ValueError: Both *pad_token_id* and *attention_mask* are given, or the mask pads elsewhere
            than on the left; on a call, the number of rows differs from the mask or streams.
    """
    return _bridge()(
        chain=chain,
        prompt_length=prompt_length,
        pad_token_id=pad_token_id,
        attention_mask=attention_mask,
        seed=seed,
        random_streams=random_streams,
    )


def _as_mask(value: Any) -> Tensor | None:
    return None if value is None else torch.as_tensor(value) != 0


def _check_mask(instance: "_Bridge", attribute: "attrs.Attribute[Any]", mask: Tensor | None) -> None:
    if mask is None:
        return
    if instance.pad_token_id is not None:
        raise ValueError("'attention_mask' and 'pad_token_id' both say what is padding: give one of them")
    if mask.ndim != 2 or bool((mask[:, 1:] < mask[:, :-1]).any()):
        raise ValueError(
            f"'attention_mask' must be 2-D with zeros on the left only: got {mask.long().tolist()}"
        )


@attrs.define(eq=False, kw_only=True)
class _Bridge:
    """Converts the ids of ``generate`` to a history."""

    # Continuous batching packs several requests into one row.
    supports_continuous_batching = False

    chain: Processor = attrs.field(validator=a_callable)
    prompt_length: int | None = attrs.field(validator=validators.optional([a_whole_number, validators.ge(0)]))
    pad_token_id: int | None = attrs.field(validator=validators.optional(a_whole_number))
    attention_mask: Tensor | None = attrs.field(converter=_as_mask, validator=_check_mask, repr=False)
    seed: int = attrs.field(validator=a_whole_number)
    random_streams: Sequence[int] | None

    _prompt: Tensor | None = attrs.field(init=False, default=None, repr=False)
    _longest: int = attrs.field(init=False, default=0, repr=False)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Process *scores* ``[batch, vocab]``, which are not modified, after ids ``[batch, length]``."""
        history = self._history(input_ids)
        return self.chain(scores[:, None], history)[:, 0]

    def _history(self, input_ids: Tensor) -> History:
        if not input_ids.shape[1]:
            # Of a prompt of embeddings; there is a column in any history.
            input_ids = torch.nn.functional.pad(input_ids, (0, 1))
            none = torch.zeros(len(input_ids), 1, dtype=torch.int64, device=input_ids.device)
            return attrs.evolve(self._history(input_ids), length=none, prompt=none[:, 0])
        batch, columns = input_ids.shape
        # A prompt of embeddings has a mask, but no ids.
        padding = self._padding(input_ids).clamp(max=columns)
        # Rows begin in slot 0; slots beyond their length are not read.
        slots = torch.arange(columns, device=input_ids.device) + padding[:, None]
        ids = input_ids.gather(-1, slots.clamp(max=max(columns - 1, 0)))
        numbers = torch.arange(batch) if self.random_streams is None else torch.as_tensor(self.random_streams)
        _check_rows("random_streams", len(numbers), batch)
        return History(
            ids=ids[:, None],
            length=(columns - padding)[:, None],
            prompt=(self._prompt_columns(input_ids) - padding).clamp(min=0),
            random_stream=noise.random_streams(numbers, self.seed).to(input_ids.device),
        )

    def _padding(self, input_ids: Tensor) -> Tensor:
        """Number of left-padding columns of each row, ``[batch]``."""
        if self.attention_mask is not None:
            _check_rows("attention_mask", len(self.attention_mask), len(input_ids))
            return (~self.attention_mask).sum(dim=-1).to(input_ids.device)
        if self.pad_token_id is None:
            return torch.zeros(len(input_ids), dtype=torch.int64, device=input_ids.device)
        return (input_ids == self.pad_token_id).long().cumprod(dim=-1).sum(dim=-1)

    def _prompt_columns(self, input_ids: Tensor) -> int:
        if self.prompt_length is not None:
            return self.prompt_length
        if self._prompt is None or not self._continues(self._prompt, input_ids):
            self._prompt, self._longest = input_ids.clone(), input_ids.shape[1]
        self._longest = max(self._longest, input_ids.shape[1])
        return self._prompt.shape[1]

    def _continues(self, prompt: Tensor, input_ids: Tensor) -> bool:
        # Not just the last call's next column: assisted decoding goes back after rejected drafts.
        near = input_ids.shape[1] <= self._longest + 1
        return near and torch.equal(prompt, input_ids[:, : prompt.shape[1]])


def _check_rows(name: str, found: int, rows: int) -> None:
    if found != rows:
        raise ValueError(f"'{name}' must have one value per row: got {found} for {rows} rows")


@cache
def _bridge() -> type[_Bridge]:
    # Imported lazily, because importing transformers is slow.
    from transformers import LogitsProcessor

    class DecodekitLogitsProcessor(_Bridge, LogitsProcessor):  # type: ignore[misc]
        """A decodekit chain for ``transformers.generate``."""

    return DecodekitLogitsProcessor
