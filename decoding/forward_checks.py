"""
Input checks of a forward, on the host, before anything is written.

A compiled program does not check its inputs: a wrong width reads beyond the input, and the effect of
a write out of range depends on the compiler. The checks cost a few microseconds.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .protocols import Decoder, DecoderShape
from .trees import depths
from .validation import is_whole


def require_decoder(decoder: object) -> None:
    """
    Refuse an object that is not a decoder, such as a model.

    Raises:
        TypeError: *decoder* has no shape or no forward.
    """
    if not isinstance(decoder, Decoder) or not isinstance(decoder.shape, DecoderShape):
        raise TypeError(
            "'decoder' must have a shape and forward(ids, cache_pos), as compile_decoder makes one: "
            f"got a {type(decoder).__name__}"
        )


def refuse_foreign(processor: object) -> None:
    """
    Refuse a transformers processor, which takes other arguments.

    Raises:
        TypeError: *processor* is from transformers.
    """
    if any(base.__module__.startswith("transformers.generation") for base in type(processor).__mro__):
        raise TypeError(
            "a processor takes (logits, history): wrap Hugging Face's in "
            f"decodekit.processors.from_transformers: got a {type(processor).__name__}"
        )


def check_inputs(ids: Tensor, cache_pos: Tensor, shape: DecoderShape) -> None:
    """
    Check ``[batch, width]`` *ids* and ``[batch]`` *cache_pos* against *shape*.

    Raises:
        TypeError: They are not int64 tensors.

        ValueError: Wrong shape, device, id or position.
    """
    _check_tensor("ids", ids, 2)
    _check_tensor("cache_pos", cache_pos, 1)
    _check_rows(ids, cache_pos, shape.batch_size)
    if ids.shape[1] not in shape.widths:
        raise ValueError(f"ids must be as wide as one of {shape.widths}: got {ids.shape[1]}")
    _check_ids(ids, shape.vocab_size)
    _check_positions(ids, cache_pos, shape.max_length)


def check_row_widths(widths: Sequence[int], of: Sequence[int]) -> None:
    """
    Check the widths of the forwards of one row; there may be none.

    Raises:
        ValueError: They are not ascending, or not among the decoder's widths *of*.
    """
    if list(widths) != sorted(set(widths)) or not set(widths) <= set(of):
        raise ValueError(
            f"'row_widths' must be ascending, and of the widths {tuple(of)}: got {tuple(widths)}"
        )


def check_row_inputs(
    ids: Tensor, cache_pos: Tensor, row: int, shape: DecoderShape, row_widths: Sequence[int]
) -> None:
    """
    Check ``[1, width]`` *ids* and ``[1]`` *cache_pos* of a forward of one *row*.

    Raises:
        TypeError: They are not int64 tensors, or the row is no whole number.

        ValueError: Wrong shape, device, id, position or row.
    """
    _check_tensor("ids", ids, 2)
    _check_tensor("cache_pos", cache_pos, 1)
    if not is_whole(row):
        raise TypeError(f"'row' must be a whole number: got {row!r}")
    if not 0 <= row < shape.batch_size:
        raise ValueError(f"'row' must be 0 to {shape.batch_size - 1}: got {row}")
    _check_rows(ids, cache_pos, 1)
    if ids.shape[1] not in row_widths:
        raise ValueError(
            f"the ids of a row must be as wide as one of {tuple(row_widths)}: got {ids.shape[1]}"
        )
    _check_ids(ids, shape.vocab_size)
    _check_positions(ids, cache_pos, shape.max_length)


def check_copy(source: Tensor, upto: int, shape: DecoderShape) -> None:
    """
    Check the ``[batch]`` *source* rows and the number of slots of a copy.

    Raises:
        TypeError: *source* is no int64 tensor, or *upto* no whole number.

        ValueError: Wrong shape, device, row or number.
    """
    _check_tensor("source", source, 1)
    if not is_whole(upto):
        raise TypeError(f"'upto' must be a whole number: got {upto!r}")
    rows = shape.batch_size
    if len(source) != rows or not ((source >= 0) & (source < rows)).all():
        raise ValueError(f"'source' must name one of {rows} rows for each row: got {source.tolist()}")
    if not 0 <= upto <= shape.max_length:
        raise ValueError(f"'upto' must be 0 to {shape.max_length}, the positions of a row: got {upto}")


def check_tree_widths(widths: Sequence[int]) -> None:
    """
    Check the widths of the tree forwards; there may be none.

    Raises:
        ValueError: They are not positive and ascending.
    """
    numbers = all(isinstance(width, int) and not isinstance(width, bool) for width in widths)
    if not numbers or list(widths) != sorted(set(widths)) or any(width < 1 for width in widths):
        raise ValueError(f"'tree_widths' must be positive and ascending: got {tuple(widths)}")


def check_tree_inputs(
    ids: Tensor, cache_pos: Tensor, parents: Tensor, shape: DecoderShape, tree_widths: Sequence[int]
) -> None:
    """
    Check ``[batch, width]`` *ids* and *parents* and ``[batch]`` *cache_pos* against *shape*.

    Raises:
        TypeError: They are not int64 tensors.

        ValueError: Wrong shape, device, id, parent or position, or padding before a token.
    """
    _check_tensor("ids", ids, 2)
    _check_tensor("cache_pos", cache_pos, 1)
    _check_tensor("parents", parents, 2)
    _check_rows(ids, cache_pos, shape.batch_size)
    if ids.shape[1] not in tree_widths:
        raise ValueError(
            f"the ids of a tree must be as wide as one of {tuple(tree_widths)}: got {ids.shape[1]}"
        )
    if parents.shape != ids.shape:
        raise ValueError(f"parents must have the shape of ids, {list(ids.shape)}: got {list(parents.shape)}")
    _check_ids(ids, shape.vocab_size)
    _check_parents(ids, parents)
    _check_tree_positions(ids, cache_pos, parents, shape.max_length)


def _check_parents(ids: Tensor, parents: Tensor) -> None:
    real = ids >= 0
    late = real[:, 1:] & ~real[:, :-1]
    if late.any():
        row, column = late.nonzero()[0].tolist()
        raise ValueError(
            "the padding of a tree must lie behind its tokens: "
            f"got some before row {row}, column {column + 1}"
        )
    wrong = ((parents < -1) | (parents >= torch.arange(ids.shape[1]))) & real
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"parents must be >= -1 and < their own column: got {parents[row, column].item()} "
            f"in row {row}, column {column}"
        )


def _check_tree_positions(ids: Tensor, cache_pos: Tensor, parents: Tensor, max_length: int) -> None:
    depth = depths(ids.numpy(), parents.numpy())
    # Padding may be at any position.
    positions = np.where(ids.numpy() >= 0, cache_pos.numpy()[:, None] + depth, 0)
    outside = (positions < 0) | (positions >= max_length)
    if outside.any():
        row, column = np.argwhere(outside)[0].tolist()
        raise ValueError(_out_of_range(max_length, positions[row, column], row, column))


def _out_of_range(max_length: int, position: int, row: int, column: int) -> str:
    return (
        f"tokens must lie at positions >= 0 and < {max_length}: got {position} in row {row}, column {column}"
    )


def _check_tensor(name: str, tensor: Tensor, dims: int) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.int64:
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{name} must be an int64 tensor: got {kind}")
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} must be on the host: got {tensor.device}")
    if tensor.dim() != dims:
        raise ValueError(f"{name} must have {dims} dimension(s): got shape {tuple(tensor.shape)}")


def _check_rows(ids: Tensor, cache_pos: Tensor, batch_size: int) -> None:
    if ids.shape[0] != batch_size or cache_pos.shape[0] != batch_size:
        raise ValueError(
            f"ids and cache_pos must have {batch_size} rows: got {ids.shape[0]} and {cache_pos.shape[0]}"
        )


def _check_ids(ids: Tensor, vocab_size: int) -> None:
    low, high = torch.aminmax(ids)
    if low.item() >= -1 and high.item() < vocab_size:
        return
    row, column = ((ids < -1) | (ids >= vocab_size)).nonzero()[0].tolist()
    raise ValueError(
        f"ids must be >= -1 and < {vocab_size}: got {ids[row, column].item()} in row {row}, column {column}"
    )


def _check_positions(ids: Tensor, cache_pos: Tensor, max_length: int) -> None:
    low, high = torch.aminmax(cache_pos)
    if low.item() >= 0 and high.item() + ids.shape[1] <= max_length:
        return
    # Only padding may lie outside, so check column by column.
    positions = cache_pos[:, None] + torch.arange(ids.shape[1])
    outside = ((positions < 0) | (positions >= max_length)) & (ids >= 0)
    if not outside.any():
        return
    row, column = outside.nonzero()[0].tolist()
    raise ValueError(_out_of_range(max_length, int(positions[row, column]), row, column))
