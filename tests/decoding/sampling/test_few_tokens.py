"""A few tokens, and those of them that stay."""

import numpy as np
from hypothesis import given, strategies as st

from decodekit.decoding.sampling.few_tokens import Few


def few_of(scores: list[float]) -> Few:
    """Tokens 0, 10, 20, ... of these logits."""
    return Few(10 * np.arange(len(scores)), np.array(scores, dtype=np.float32))


def said(few: Few) -> list[tuple[int, float]]:
    """The tokens and their logits."""
    ids, scores = few.arrays()
    return list(zip(ids.tolist(), scores.tolist(), strict=True))


@given(
    st.lists(st.sampled_from((-np.inf, -1.0, 0.5, 2.0, 3.0)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=3),
)
def test_the_smallest_go_and_their_equals_stay(scores: list[float], cuts: list[tuple[int, bool]]) -> None:
    """Cut after cut, with and without reading the arrays in between; compared with sorted lists."""
    few, left = few_of(scores), list(enumerate(scores))
    for n, looks in cuts:
        n = min(n, len(left) - 1)
        floor = sorted(score for _, score in left)[n]
        left = [(token, score) for token, score in left if score >= floor]
        before, few = few, few.without_smallest(n)
        if looks:
            assert len(left) == len(said(few)) <= len(said(before))

        assert sorted(score for _, score in left) == few.ascending().tolist()
        assert max(score for _, score in left) == few.largest()

    assert [(10 * token, score) for token, score in left] == said(few)


def test_nothing_is_written_to() -> None:
    """Neither the arrays that it was made of, nor the order of one that others have come from."""
    ids, scores = np.array([3, 5, 8]), np.array([2.0, 0.0, 1.0], dtype=np.float32)
    few = Few(ids, scores)
    few.without_smallest(1).without_smallest(1).arrays()

    assert ([3, 5, 8], [2.0, 0.0, 1.0]) == (ids.tolist(), scores.tolist())
    assert [0.0, 1.0, 2.0] == few.ascending().tolist()
    assert [(3, 2.0), (5, 0.0), (8, 1.0)] == said(few)


def test_garbage_is_the_largest() -> None:
    """So that who looks at the largest alone does not miss it."""
    assert np.isnan(few_of([1.0, np.nan, 2.0]).largest())
