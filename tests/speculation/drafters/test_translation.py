"""Incremental translation to another vocabulary."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given, strategies as st

from decodekit.speculation.drafters.translation import Ints, Translation

TEXTS = st.lists(st.integers(0, 2), max_size=14)


def split(tokens: Ints, start: int) -> Iterator[tuple[int, int, bool]]:
    """Chunks of two tokens or more, each but the first beginning with a 0."""
    while start < len(tokens):
        zeros = [place for place in range(start + 2, len(tokens)) if tokens[place] == 0]
        end = zeros[0] if zeros else len(tokens)
        yield start, end, start == 0
        start = end


def encode(chunk: list[int], starts_text: bool) -> list[int]:
    """The chunk as one number, after a 9 at the start of a text; nothing for two zeros."""
    return [] if chunk == [0, 0] else [9] * starts_text + [sum(3**i * token for i, token in enumerate(chunk))]


@given(st.lists(TEXTS, max_size=6), TEXTS)
def test_is_a_function_of_the_text(before: list[list[int]], text: list[int]) -> None:
    """Independent of earlier texts: longer, shorter or different ones."""
    translation = Translation()
    for other in before:
        translation = translation.of(np.array(other, dtype=np.int64), split, encode)
    tokens = np.array(text, dtype=np.int64)
    found, fresh = translation.of(tokens, split, encode), Translation().of(tokens, split, encode)
    chunks = list(split(tokens, 0))

    assert [index for a, b, first in chunks for index in encode(text[a:b], first)] == found.own.tolist()
    assert [end for _, end, _ in chunks] == found.ends.tolist()
    assert fresh.own_ends.tolist() == found.own_ends.tolist()


def test_a_text_that_grows_is_encoded_once() -> None:
    """Only the last chunk, which may have grown, is encoded again."""
    encoded: list[list[int]] = []
    translation = Translation()
    text = np.array([1, 1, 0, 1, 0, 2, 0, 1])
    for end in range(len(text) + 1):
        translation = translation.of(
            text[:end], split, lambda chunk, starts_text: encoded.append(chunk) or encode(chunk, starts_text)
        )

    assert [[1], [1, 1], [1, 1], [0], [0, 1], [0, 1], [0], [0, 2], [0, 2], [0], [0, 1]] == encoded


def test_later_changes_of_the_text_do_not_arrive() -> None:
    """The loop overwrites its ids later."""
    text = np.array([1, 1, 0, 1, 0, 2])
    translation = Translation().of(text, split, encode)
    text[0] = 2

    assert (
        Translation().of(text, split, encode).own.tolist() == translation.of(text, split, encode).own.tolist()
    )
