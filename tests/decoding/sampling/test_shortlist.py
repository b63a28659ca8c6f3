"""Superset of the largest logits."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from decodekit.decoding.sampling.shortlist import shortlist


@given(st.integers(800, 3000), st.integers(1, 12), st.integers(0, 2**31), st.sampled_from((None, 1, 3)))
def test_nothing_larger_is_left_out(vocab: int, reach: int, seed: int, decimals: int | None) -> None:
    """Ascending ids and their logits: those from the floor on, no others; rounded ones, with ties, too."""
    logits = np.random.default_rng(seed).standard_normal(vocab).astype(np.float32)
    logits = logits if decimals is None else logits.round(decimals)
    found = shortlist(logits, reach)
    if found is None:
        # Too many are alike.
        assert decimals == 1
        return
    few, floor = found
    ids, scores = few.arrays()

    assert np.flatnonzero(logits >= floor).tolist() == ids.tolist()
    assert logits[ids].tolist() == scores.tolist()
    assert len(ids) >= reach


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e20])
@pytest.mark.parametrize("place", [0, 500, 1023, 1030])
def test_out_of_the_ordinary(odd: float, place: int) -> None:
    """Garbage, and what might overflow, is not looked through; nor where little is left or all is alike."""
    logits = np.random.default_rng(0).standard_normal(1031).astype(np.float32)
    assert shortlist(logits, 4) is not None
    logits[place] = odd

    assert shortlist(logits, 4) is None
    assert shortlist(np.zeros(1031, dtype=np.float32), 4) is None
    assert shortlist(np.full(1031, -np.inf, dtype=np.float32), 4) is None
    assert shortlist(np.arange(1031, dtype=np.float32), 17) is None
