"""Check of a program that copies rows, made whenever a decoder that has one is constructed."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ...decoding.cache.slots import Slots
from ...decoding.history import History
from ...decoding.optional_protocols import CopiesRows
from ...decoding.protocols import Decoder
from ..models.unsupported import UnsupportedArchitecture
from .magnitude import magnitude

_LONGEST = 32


class CopyingDecoder(Decoder, CopiesRows, Protocol):
    """A decoder that may copy rows."""

    copies_by_program: bool
    """Whether a program copies them."""


def check_copies(
    decoder: CopyingDecoder, spans: Sequence[int], tolerance: float, whose: str, architecture: str
) -> None:
    """
    Compare rows after a program has permuted them with rows that were fed. The cache is overwritten.

    Args:
        decoder: A decoder whose forwards have been compared already.

        spans: Numbers of leading positions that a program copies, ascending.

        tolerance: Largest difference allowed, relative to the largest logit.

        whose: Name of the decoder in error messages.

        architecture: Architecture of its model.

    Raises:
        UnsupportedArchitecture: The copy failed, or the logits differ.
    """
    shape = decoder.shape
    length = min(shape.max_length - 1, spans[0], _LONGEST)
    if not (decoder.copies_rows and decoder.copies_by_program and length):
        return
    ids = torch.randint(
        shape.vocab_size, (shape.batch_size, length + 1), generator=torch.Generator().manual_seed(0)
    )
    source, slots = torch.arange(shape.batch_size).roll(-1), Slots(decoder)
    try:
        expected = _feed(slots, ids[source], length + 1)
        found = [_copied(decoder, slots, ids, source, span) for span in spans]
    except Exception as error:
        raise UnsupportedArchitecture(architecture, f"{whose} failed to copy rows: {error!r}") from error
    off = magnitude(*(each - expected for each in found))
    allowed = tolerance * magnitude(expected)
    # Also true for NaN.
    if not off <= allowed:
        raise UnsupportedArchitecture(
            architecture,
            f"{whose} scores copied rows otherwise than rows that were fed, by {off:.3g}, more than rounding "
            f"explains ({allowed:.3g})",
        )


def _copied(decoder: CopyingDecoder, slots: Slots, ids: Tensor, source: Tensor, span: int) -> Tensor:
    """Logits after the last of the *source* rows' *ids*, of which the cache got all others by copying."""
    before = ids.shape[1] - 1
    slots.forget()
    _feed(slots, ids, before)
    decoder.copy_rows(source, span)
    last = torch.full((len(ids), decoder.shape.widths[0]), -1)
    last[:, -1] = ids[source, before]
    start = torch.full((len(ids),), before - last.shape[1] + 1)
    logits = decoder.forward(last, start)[:, -1:].clone()
    slots.forget()
    return logits


def _feed(slots: Slots, ids: Tensor, length: int) -> Tensor:
    """Logits after the first *length* of *ids*, ``[batch, 1, vocab]``."""
    ends = torch.full((len(ids),), length)
    history = History(ids[:, None], ends[:, None], ends, torch.zeros_like(ends))
    return slots.feed(history, ends, torch.ones_like(ends)).logits.clone()
