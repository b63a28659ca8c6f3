"""Histories for tests."""

from collections.abc import Sequence

import torch

from decodekit.decoding import History


def history_of_rows(rows: Sequence[Sequence[int]], capacity: int = 64, garbage: int = 0) -> History:
    """*rows* as prompts, width 1, with *garbage* behind each; an empty row counts as one of length 0."""
    ids = torch.full((len(rows), 1, capacity), garbage)
    for row, tokens in enumerate(rows):
        ids[row, 0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    length = torch.tensor([len(tokens) for tokens in rows])
    return History(ids, length[:, None], length, torch.arange(len(rows)))
