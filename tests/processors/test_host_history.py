"""The history's tokens as arrays."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodekit.decoding.few import Cell
from decodekit.processors import host_history
from decodekit.processors.host_history import counted_tokens, occurring, with_logits


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(-2, 12)))
def test_occurring_is_being_among_them(ids: list[int], tokens: list[int]) -> None:
    """By brute force; ids without a logit are nobody's, and nothing stays from call to call."""
    expected = [at for at, token in enumerate(ids) if token in tokens]
    some = np.array(ids, dtype=np.int64)

    assert expected == occurring(some, np.array(tokens, dtype=np.int64), 10).tolist()
    assert [] == occurring(some, np.array([], dtype=np.int64), 10).tolist()
    assert [token for token in tokens if 0 <= token < 10] == with_logits(
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


def test_calls_are_numbered_anew_when_the_numbers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last one the marks of all calls before are gone."""
    monkeypatch.setattr(host_history, "_own", threading.local())
    monkeypatch.setattr(host_history, "_CALLS", 2)
    ids = np.arange(4)

    for token in (0, 1, 2, 3, 0, 2):
        assert [token] == occurring(ids, np.array([token]), 4).tolist()
