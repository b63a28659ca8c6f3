"""The tokens before each column of a forward."""

import numpy as np
import torch

from decodekit.decoding import DecoderShape, History
from decodekit.decoding.cache.columns import columns_of

SHAPE = DecoderShape(batch_size=4, max_length=20, vocab_size=50, widths=(1, 5, 16), scored_width=5)


def run_of(rows: int) -> History:
    """Rows of a run, that many."""
    ids = torch.arange(rows * 21).reshape(rows, 1, 21)
    prompt = 2 + torch.arange(rows)
    return History(ids, prompt[:, None], prompt, 100 + torch.arange(rows))


def test_left_aligned_columns_end_one_after_the_other() -> None:
    """Padding behind a row's last token repeats it; an idle row stays where it is."""
    window = columns_of(run_of(3), np.array([0, 7, 4]), np.array([5, 9, 4]), 5, SHAPE)

    assert [[1, 2, 3, 4, 5], [8, 9, 9, 9, 9], [4, 4, 4, 4, 4], [1, 1, 1, 1, 1]] == window.length.tolist()


def test_one_column_ends_with_the_row() -> None:
    """Whether it is a step or the end of a wide forward."""
    window = columns_of(run_of(4), np.array([0, 7, 0, 19]), np.array([16, 8, 0, 20]), 1, SHAPE)

    assert [[16], [8], [1], [20]] == window.length.tolist()


def test_an_idle_row_may_be_longer_than_the_decoder() -> None:
    """A draft that has fewer positions than its target."""
    window = columns_of(run_of(4), np.array([3, 30, 0, 0]), np.array([4, 30, 1, 1]), 1, SHAPE)

    assert [[4], [20], [1], [1]] == window.length.tolist()


def test_rows_that_the_run_does_not_have_are_filled_up() -> None:
    """With lengths that there could be; what the run has is as it was."""
    run = run_of(2)
    window = columns_of(run, np.array([0, 7]), np.array([1, 8]), 1, SHAPE)

    assert torch.equal(run.ids, window.ids[:2])
    assert [0] * 42 == window.ids[2:].flatten().tolist()
    assert [2, 3, 1, 1] == window.prompt.tolist()
    assert [100, 101, 0, 0] == window.random_stream.tolist()


def test_a_full_run_is_not_copied() -> None:
    """Its history may be long."""
    run = run_of(4)

    assert run.ids is columns_of(run, np.zeros(4, int), np.ones(4, int), 1, SHAPE).ids
