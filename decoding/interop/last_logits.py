"""Logits after the last tokens of whole rows, whatever the decoder holds of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..history import History
from ..serving.row_placement import best_row
from ..token_feeder import TokenFeeder


def last_logits(feeder: TokenFeeder, rows: Sequence[Tensor], need: Sequence[int]) -> list[Tensor]:
    """
    Feed what the decoder lacks of each row, and score its last tokens.

    Each row goes where most of it is cached, or is copied from there. More columns than the decoder scores
    take several forwards.

    Args:
        feeder: The decoder's.

        rows: The tokens of each row, ``[length]`` int64, all of the vocabulary; at most as many rows as the
            decoder has.

        need: How many of the last tokens of each row to score; 0 leaves a row as it is.

    Returns:
        For each row logits ``[need, vocab]`` float32 after those tokens, in order.

    Raises:
        ValueError: Too many rows, or a row that is too long.
    """
    shape = feeder.shape
    check_rows(len(rows), shape.batch_size)
    longest = max(map(len, rows))
    if longest > shape.max_length:
        raise ValueError(
            f"a row must have at most {shape.max_length} tokens, the decoder's max_length: got {longest}"
        )
    logits = [torch.empty(count, shape.vocab_size) for count in need]
    with feeder.lock, torch.no_grad():
        places = _placed(feeder, rows)
        history = _history(rows, places, shape.batch_size, longest)
        length, scored = history.length[:, 0], shape.scored_width
        wanted = torch.zeros_like(length)
        wanted[places] = torch.tensor(need)
        # Windows of the scored width, counted from the end; the first of them first.
        for later in reversed(range(0, max(need), scored)):
            count = (wanted - later).clamp(0, scored)
            fed = feeder.feed(history, length - torch.where(count > 0, later, 0), count)
            for row, place in enumerate(places):
                if n := int(count[place]):
                    end = need[row] - later
                    logits[row][end - n : end] = fed.logits[place, :n]
    return logits


def check_rows(rows: int, batch_size: int) -> None:
    """
    Check that a decoder has enough rows.

    Raises:
        ValueError: It has not.
    """
    if rows > batch_size:
        raise ValueError(
            f"a forward must have at most {batch_size} rows, the decoder's batch_size: got {rows}. "
            f"Compile it with batch_size={rows}"
        )


def _placed(feeder: TokenFeeder, rows: Sequence[Tensor]) -> list[int]:
    """
    The decoder's row for each row; those that find most of them cached choose first.

    One that finds at least half of it in a row that is taken becomes a copy of that row first, if it would
    lack more than its newest token otherwise, as the second child of a beam does.
    """
    free, held = list(range(feeder.shape.batch_size)), feeder.held()
    overlaps = [feeder.overlap(row.numpy(force=True)) for row in rows]
    places, source = [0] * len(rows), list(free)
    for row in sorted(range(len(rows)), key=lambda row: -max(overlaps[row])):
        overlap = overlaps[row]
        place = places[row] = best_row(free, overlap, held)
        free.remove(place)
        fullest = max(range(len(overlap)), key=overlap.__getitem__)
        lacks = overlap[place] < min(overlap[fullest], len(rows[row]) - 1)
        if lacks and 2 * overlap[fullest] >= len(rows[row]):
            source[place] = fullest
    if source != list(range(len(source))):
        # Where the decoder cannot, it is fed.
        feeder.copy_rows(source)
    return places


def _history(rows: Sequence[Tensor], places: Sequence[int], batch_size: int, capacity: int) -> History:
    ids = torch.zeros(batch_size, 1, capacity, dtype=torch.int64)
    length = torch.zeros(batch_size, dtype=torch.int64)
    for row, place in zip(rows, places, strict=True):
        ids[place, 0, : len(row)] = row
        length[place] = len(row)
    return History(ids, length[:, None], length, torch.zeros_like(length))
