"""Rows that are copied from others, and the record of what they hold."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import Slots
from decodekit.testing import ScriptedDecoder, whole_prefix

from ...histories import history_of_rows

TABLE = torch.arange(97.0 * 11).reshape(97, 11)
ROW = st.lists(st.integers(0, 2), min_size=1, max_size=20)
STEP = st.tuples(
    st.lists(st.integers(0, 3), min_size=4, max_size=4), st.lists(ROW, min_size=3, max_size=3), st.booleans()
)


def copying(rows: int, copies: bool = True) -> ScriptedDecoder:
    """A decoder of so many rows."""
    return ScriptedDecoder(TABLE, batch_size=rows, copies_rows=copies)


def feed(slots: Slots, rows: list[list[int]], exact_width: bool = False) -> Tensor:
    """Feed *rows* and score the successor of each."""
    history = history_of_rows(rows)
    need = torch.ones(len(rows), dtype=torch.int64)
    return slots.feed(history, history.length[:, 0], need, exact_width=exact_width).logits[:, 0]


@pytest.mark.parametrize("copies", [True, False])
@given(steps=st.lists(STEP, max_size=6))
def test_what_is_fed_then_is_scored_right(
    copies: bool, steps: list[tuple[list[int], list[list[int]], bool]]
) -> None:
    """After any copies, permutations among them, of rows of any lengths; and where no rows are copied."""
    slots = Slots(copying(4, copies))
    for source, rows, exact in steps:
        assert slots.copy_rows(source) == copies
        logits = feed(slots, rows, exact)
        for row, tokens in enumerate(rows):
            assert torch.equal(TABLE[whole_prefix(tokens) % 97], logits[row])


def test_copied_tokens_are_not_fed_again() -> None:
    """All at once: two rows change places, and a third becomes one of them."""
    slots = Slots(copying(4))
    feed(slots, [[1, 2, 3, 4], [5, 6], [7]])
    slots.copy_rows([1, 0, 0, 3])

    assert [2, 4, 4, 0] == slots.held()
    assert [2, 0, 0, 0] == slots.overlap([5, 6])
    assert [0, 4, 4, 0] == slots.overlap([1, 2, 3, 4])
    fed = slots.counts.tokens
    feed(slots, [[5, 6, 1], [1, 2, 3, 4, 1], [1, 2, 3, 4, 2]])

    assert 3 == slots.counts.tokens - fed


def test_the_program_that_wrote_a_token_is_copied_too() -> None:
    """Under ``exact_width``, tokens that another program wrote are fed again in the copy as well."""
    slots = Slots(copying(2))
    feed(slots, [[0], [5, 6, 7, 8, 5, 6, 7]], exact_width=True)
    feed(slots, [[1, 2, 3, 4, 5, 6, 7], [5, 6, 7, 8, 5, 6, 7]])
    slots.copy_rows([0, 0])
    fed = slots.counts.tokens
    feed(slots, [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7]], exact_width=True)

    assert 14 == slots.counts.tokens - fed


def test_nothing_is_copied_in_place() -> None:
    """Every row from itself, or empty rows: the decoder is not asked, but the answer is whether it could."""

    class Refuses(ScriptedDecoder):
        def copy_rows(self, source: Tensor, upto: int) -> None:
            raise AssertionError

    slots = Slots(Refuses(TABLE, batch_size=2, copies_rows=True))

    assert slots.copy_rows([1, 0])
    feed(slots, [[1, 2], [3]])

    assert slots.copy_rows([0, 1])
    assert [2, 1] == slots.held()


def test_a_failed_copy_leaves_nothing_to_rely_on() -> None:
    """Its rows are in an unknown state, and everything is fed again."""

    class Fails(ScriptedDecoder):
        def copy_rows(self, source: Tensor, upto: int) -> None:
            self.slots[1] = self.slots[0]
            raise KeyboardInterrupt

    slots = Slots(Fails(TABLE, batch_size=2, copies_rows=True))
    feed(slots, [[1, 2], [3, 4]])
    with pytest.raises(KeyboardInterrupt):
        slots.copy_rows([0, 0])

    assert torch.equal(TABLE[whole_prefix([3, 4]) % 97], feed(slots, [[1, 2], [3, 4]])[1])


@pytest.mark.parametrize("source", [[0], [0, 2], [0, -1], [0, 0.5], [0, 0, 0]])
def test_a_wrong_source_is_refused(source: list[Any]) -> None:
    """Before anything is copied."""
    slots = Slots(copying(2))
    feed(slots, [[1, 2], [3]])
    with pytest.raises(ValueError, match="'source' must name one of 2 rows for each row: got"):
        slots.copy_rows(source)

    assert [2, 1] == slots.held()


def test_logits_in_use_are_not_overwritten() -> None:
    """As in a feed."""
    slots = Slots(copying(2))
    slots.logits_in_use = True
    with pytest.raises(RuntimeError, match="must not use the decoder"):
        slots.copy_rows([0, 0])
