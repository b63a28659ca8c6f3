"""Records of running texts."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import attrs
import numpy as np
import pytest
from numpy.typing import NDArray

from decodekit.speculation.drafters import running_texts
from decodekit.speculation.drafters.running_texts import RunningTexts


@attrs.frozen(eq=False)
class Note:
    """A text."""

    tokens: NDArray[np.int64] = attrs.field(converter=lambda ids: np.array(ids, dtype=np.int64))


def ids(*tokens: int) -> NDArray[np.int64]:
    """Tokens."""
    return np.array(tokens, dtype=np.int64)


class TestRunningTexts:
    def test_the_longest_that_goes_on(self) -> None:
        """Neither a shorter one nor one with another last token."""
        texts = RunningTexts[Note]()
        notes = [Note([1]), Note([1, 2, 3]), Note([1, 2]), Note([1, 3]), Note([1, 2, 3, 4, 5])]
        texts.put(notes, len(notes))

        assert [notes[1], notes[2], notes[0], None] == [texts.take(ids(1, 2, 3, 4)) for _ in range(4)]
        assert notes[3] is texts.take(ids(1, 3))

    def test_a_text_as_it_was(self) -> None:
        """A text without new tokens is found too."""
        texts, note = RunningTexts[Note](), Note([1, 2])
        texts.put([note], 1)

        assert note is texts.take(ids(1, 2))

    def test_each_of_two_equal_ones(self) -> None:
        """Rows of one prompt have a record each."""
        texts, notes = RunningTexts[Note](), [Note([1]), Note([1])]
        texts.put(notes, len(notes))

        taken = [texts.take(ids(1, 2)), texts.take(ids(1, 3))]

        assert {id(note) for note in notes} == {id(note) for note in taken}

    def test_long_texts_are_fewer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The oldest are dropped above the token limit, but never those of the latest call."""
        monkeypatch.setattr(running_texts, "_MOST_TOKENS", 5)
        texts, notes = RunningTexts[Note](), [Note([1, 1, 1]), Note([2, 2]), Note([3])]
        for note in notes:
            texts.put([note], 1)

        assert texts.take(notes[0].tokens) is None
        assert notes[1:] == [texts.take(note.tokens) for note in notes[1:]]

        texts.put([Note([4] * 9), Note([5] * 9)], 2)

        assert texts.take(ids(*[4] * 9)) is not None

    def test_is_bounded(self) -> None:
        """The oldest are dropped, but never those of the latest call."""
        texts, many = RunningTexts[Note](), running_texts._MOST_IDLE
        texts.put([Note([7])], 1)
        texts.put([Note([row]) for row in range(100, 100 + many)], many)
        assert texts.take(ids(7, 1)) is None

        texts.put([Note([row]) for row in range(3 * many)], 3 * many)
        assert all(texts.take(ids(row, 1)) for row in range(3 * many))

    def test_a_part_of_the_rows_drops_none_of_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a step that drafts in one row, between two that look at all."""
        monkeypatch.setattr(running_texts, "_MOST_IDLE", 2)
        texts = RunningTexts[Note]()
        texts.put([Note([row]) for row in range(4)], 4)
        for row in range(4):
            found = texts.take(ids(row, 1))
            assert found is not None
            texts.put([found], 4)

        assert 4 == len(texts._idle)

    def test_a_copy_starts_with_none(self) -> None:
        """Pickles do not contain the cache."""
        texts = RunningTexts[Note]()
        texts.put([Note([1])], 1)

        assert pickle.loads(pickle.dumps(texts)).take(ids(1)) is None

    def test_a_taken_record_is_not_shared(self) -> None:
        """Under several threads."""
        texts = RunningTexts[Note]()
        texts.put([Note([1]) for _ in range(60)], 60)
        with ThreadPoolExecutor(8) as pool:
            tokens = list(pool.map(lambda _: texts.take(ids(1, 2)), range(100)))

        found = [id(note) for note in tokens if note]
        assert 60 == len(found) == len(set(found))
