"""The shapes that a decoder is built for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...decoding.protocols import DecoderShape
from ...decoding.validation import as_tuple
from .spans import SHORTEST, powers_of_two

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULT_WIDTHS = (1, 5, 128)
"""Of decoders that run on the host."""

PADDED_WIDTHS = (1, 5, 64)
"""
Of decoders with one program, into which every forward is padded.

A token then costs what the widest costs. Inferentia2 does 190 TFLOPS in bfloat16 and reads 820 GB/s (AWS
Neuron documentation, *Inferentia2 Architecture*): of one row, 64 columns take less than a third
of the time in which it reads the weights. Being more than 32, they are not scored but for the
last; longer prompts take several forwards.
"""

_DEFAULT_MAX_LENGTH = 2048
_DEFAULT_SCORED_WIDTH = 32


def neuron_widths(max_length: int) -> tuple[int, ...]:
    """
    The widths of a decoder on Neuron if none are asked for.

    A device takes long to start a forward and little for each column of it, so a prompt goes
    through in as few as can be: the buckets of AWS's own guides.

    >>> neuron_widths(500)
    (1, 5, 128, 256, 500)
    """
    return fitting((1, 5, *powers_of_two(SHORTEST, max_length)), max_length)


def fitting(widths: Sequence[int], max_length: int) -> tuple[int, ...]:
    """
    *widths* of a decoder of so many positions: none is wider, and the widest is what is left of it.

    >>> fitting((1, 5, 128), 100)
    (1, 5, 100)
    """
    return tuple(sorted({min(width, max_length) for width in widths}))


def default_max_length(model: "PreTrainedModel") -> int:
    """2048, or as many positions as *model* knows if fewer."""
    return min(_DEFAULT_MAX_LENGTH, known_positions(model) or _DEFAULT_MAX_LENGTH)


def decoder_shape(
    model: "PreTrainedModel",
    *,
    vocab_size: int,
    batch_size: int = 1,
    max_length: int | None = None,
    widths: Sequence[int] | None = None,
    scored_width: int | None = None,
) -> DecoderShape:
    """
    Choose what the caller left open and check the rest.

    Args:
        model: Says how many positions it knows.

        vocab_size: Logits per column.

        batch_size: Rows; at least 1.

        max_length: Positions per row. None: 2048, or as many as *model* knows if fewer.

        widths: Columns of the forwards: ascending, each once, at most *max_length*. None:
            :data:`DEFAULT_WIDTHS`, as far as they fit.

        scored_width: None: the largest width up to 32, else the smallest.

    Raises:
        ValueError: An argument breaks its rule.
    """
    limit = known_positions(model)
    if max_length is None:
        max_length = default_max_length(model)
    _check_positive("'batch_size'", batch_size)
    _check_positive("'max_length'", max_length)
    if limit is not None and max_length > limit:
        raise ValueError(f"'max_length' must be <= {limit}, the model's positions: got {max_length}")
    widths = fitting(DEFAULT_WIDTHS, max_length) if widths is None else as_tuple("widths", widths)
    _check_widths(widths, max_length)
    if scored_width is None:
        scored_width = max((w for w in widths if w <= _DEFAULT_SCORED_WIDTH), default=widths[0])
    _check_positive("'scored_width'", scored_width)
    return DecoderShape(batch_size, max_length, vocab_size, widths, scored_width)


def known_positions(model: "PreTrainedModel") -> int | None:
    """How many positions *model* was made for; None if it does not say."""
    config = model.config.get_text_config(decoder=True)
    limit = getattr(config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _check_positive(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1: got {value!r}")


def _check_widths(widths: tuple[int, ...], max_length: int) -> None:
    for width in widths:
        _check_positive("each of 'widths'", width)
    if not widths or list(widths) != sorted(set(widths)):
        raise ValueError(f"'widths' must be ascending, each once, and at least one: got {widths}")
    if widths[-1] > max_length:
        raise ValueError(
            f"'widths' must be <= max_length = {max_length} (pass widths= with smaller ones): got {widths}"
        )
