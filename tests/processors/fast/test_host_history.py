"""The history's tokens as NumPy arrays."""

import numpy as np
from hypothesis import given, strategies as st

from decodekit.decoding.sampling.few_tokens import Cell
from decodekit.processors.fast.host_history import counted_tokens, ids_with_logits, occurring_indices


@given(st.sets(st.integers(0, 9)), st.lists(st.integers(-2, 12)))
def test_occurring_is_being_among_them(some: set[int], tokens: list[int]) -> None:
    """By brute force; ids without a logit are not found, and calls are independent."""
    ids = sorted(some)
    expected = [ids.index(token) for token in tokens if token in some]
    found = occurring_indices(np.array(ids, dtype=np.int64), np.array(tokens, dtype=np.int64), 10)

    assert sorted(expected) == sorted(found.tolist())
    assert [] == occurring_indices(np.array(ids, dtype=np.int64), np.array([], dtype=np.int64), 10).tolist()
    assert [token for token in tokens if 0 <= token < 10] == ids_with_logits(
        np.array(tokens, dtype=int), 10
    ).tolist()


def test_which_tokens_count() -> None:
    """All, the new ones, the last ones, or those of the last that are new."""
    cell = Cell(np.arange(6), 2, 0, 10)

    assert [0, 1, 2, 3, 4, 5] == counted_tokens(cell, True, None).tolist()
    assert [2, 3, 4, 5] == counted_tokens(cell, False, None).tolist()
    assert [1, 2, 3, 4, 5] == counted_tokens(cell, True, 5).tolist()
    assert [2, 3, 4, 5] == counted_tokens(cell, False, 5).tolist()
    assert [] == counted_tokens(cell, True, 0).tolist()


def test_a_larger_vocabulary_takes_a_larger_table() -> None:
    """And a smaller one after it is as good."""
    for vocab in (4, 40, 5):
        ids = np.array([0, vocab - 1])

        assert [1] == occurring_indices(ids, np.array([vocab - 1, vocab, -1, vocab - 2]), vocab).tolist()
