"""Default and validated shapes of a decoder: batch size, positions, widths (token buckets)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...decoding.forward_checks import check_tree_widths
from ...decoding.protocols import DecoderShape
from ...decoding.validation import as_tuple
from .spans import SHORTEST, powers_of_two

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from .geometry import Geometry

DEFAULT_WIDTHS = (1, 5, 128)
"""Default widths of decoders that run on the host."""

PADDED_WIDTHS = (1, 5, 64)
"""
Default widths of decoders with a single program, which pads every forward to its widest.

Every token then costs as much as the widest forward. Inferentia2 has 190 TFLOPS in bfloat16 and 820 GB/s (AWS
Neuron documentation, *Inferentia2 Architecture*): for one row, computing 64 columns takes less than a third
of the time for reading the weights. As 64 > 32, only the last of them is scored; longer prompts take several
forwards.
"""

_DEFAULT_MAX_LENGTH = 2048
_DEFAULT_SCORED_WIDTH = 32


def neuron_widths(max_length: int) -> tuple[int, ...]:
    """
    Default widths of a decoder on Neuron: the token buckets of AWS's guides.

    Launching a forward is expensive there and a column is cheap, so prompts take as few forwards as possible.

    >>> neuron_widths(500)
    (1, 5, 128, 256, 500)
    """
    return clip_widths((1, 5, *powers_of_two(SHORTEST, max_length)), max_length)


def widths_within(
    widths: Sequence[int], batch_size: int, geometry: "Geometry", largest_write: int
) -> tuple[int, ...]:
    """
    The *widths* whose forwards write at most *largest_write* keys, or values, of a layer; one at least.

    Args:
        widths: Columns of the forwards, ascending.

        batch_size: Rows of each.

        geometry: Heads of the model, or of the part of it that one process holds.

        largest_write: Limit of batch size x heads x width x head_dim.
    """
    column = batch_size * max(
        numbers
        for layer in geometry.layers
        for numbers in (layer.key_heads * layer.key_dim, layer.value_heads * layer.value_dim)
    )
    return tuple(width for width in widths if width * column <= largest_write) or tuple(widths[:1])


def clip_widths(widths: Sequence[int], max_length: int) -> tuple[int, ...]:
    """
    Limit *widths* to *max_length*.

    >>> clip_widths((1, 5, 128), 100)
    (1, 5, 100)
    """
    return tuple(sorted({min(width, max_length) for width in widths}))


def default_row_widths(shape: DecoderShape) -> tuple[int, ...]:
    """The widths that are worth a program of one row: those of prompts, where there are several rows."""
    return (
        tuple(width for width in shape.widths if width > shape.scored_width) if shape.batch_size > 1 else ()
    )


def default_scored_width(widths: Sequence[int]) -> int:
    """The largest of *widths* up to 32, else the smallest."""
    return max((width for width in widths if width <= _DEFAULT_SCORED_WIDTH), default=min(widths))


def default_max_length(config: "PretrainedConfig") -> int:
    """2048, or the maximum of *config*'s model if smaller."""
    return min(_DEFAULT_MAX_LENGTH, max_positions(config) or _DEFAULT_MAX_LENGTH)


def decoder_shape(
    config: "PretrainedConfig",
    *,
    vocab_size: int,
    batch_size: int = 1,
    max_length: int | None = None,
    widths: Sequence[int] | None = None,
    scored_width: int | None = None,
) -> DecoderShape:
    """
    A validated decoder shape, with defaults for what is None.

    Args:
        config: The model's, which limits the positions.

        vocab_size: Logits per column.

        batch_size: Rows; at least 1.

        max_length: Positions per row. None: 2048, or the model's own maximum if smaller.

        widths: Columns of the forwards: ascending, each once, at most *max_length*. None:
            :data:`DEFAULT_WIDTHS`, limited to *max_length*.

        scored_width: None: the largest width up to 32, else the smallest.

    Raises:
        ValueError: An argument breaks its rule.
    """
    limit = max_positions(config)
    if max_length is None:
        max_length = default_max_length(config)
    _check_positive("'batch_size'", batch_size)
    _check_positive("'max_length'", max_length)
    if limit is not None and max_length > limit:
        raise ValueError(f"'max_length' must be <= {limit}, the model's positions: got {max_length}")
    widths = clip_widths(DEFAULT_WIDTHS, max_length) if widths is None else as_tuple("widths", widths)
    _check_widths(widths, max_length)
    if scored_width is None:
        scored_width = default_scored_width(widths)
    _check_positive("'scored_width'", scored_width)
    return DecoderShape(batch_size, max_length, vocab_size, widths, scored_width)


def decoder_tree_widths(tree_widths: Sequence[int], max_length: int) -> tuple[int, ...]:
    """
    Validated *tree_widths*; there may be none.

    Raises:
        ValueError: They are not positive and ascending, or the last is above *max_length*.

        TypeError: *tree_widths* is not a sequence.
    """
    check_tree_widths(tree_widths := as_tuple("tree_widths", tree_widths))
    if max(tree_widths, default=0) > max_length:
        raise ValueError(
            f"'tree_widths' must be <= max_length = {max_length}, as many scratch slots as positions: "
            f"got {tree_widths}"
        )
    return tree_widths


def max_positions(config: "PretrainedConfig") -> int | None:
    """Maximum number of positions of *config*'s model; None if it has none."""
    text = config.get_text_config(decoder=True)
    # Whisper and other speech decoders use the second name, for learned positions.
    limits = getattr(text, "max_position_embeddings", None), getattr(text, "max_target_positions", None)
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)


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
