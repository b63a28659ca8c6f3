"""One rule by which tokens reach a decoder."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decodekit.decoding import Slots
from decodekit.testing import ScriptedDecoder, whole_prefix

TABLE = torch.arange(97.0 * 11).reshape(97, 11)


def feed(slots: Slots, rows: list[list[int]], need: list[int], exact_width: bool = False) -> torch.Tensor:
    """Feed *rows*, with garbage behind each."""
    ids = torch.full((len(rows), 64), 10)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
    lengths = torch.tensor([len(tokens) for tokens in rows])
    return slots.feed(ids, lengths, torch.tensor(need), exact_width)


def check(rows: list[list[int]], need: list[int], logits: torch.Tensor) -> None:
    """Every scored column is the table's line for its prefix."""
    for row, tokens in enumerate(rows):
        for i in range(need[row]):
            prefix = tokens[: len(tokens) - need[row] + i + 1]

            assert torch.equal(TABLE[whole_prefix(prefix) % 97], logits[row, i])


ROWS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=3, max_size=3)


class TestFeed:
    @given(
        st.lists(st.tuples(ROWS, st.lists(st.integers(0, 5), min_size=3, max_size=3)), max_size=6),
        st.booleans(),
    )
    def test_scores_what_the_rows_say(
        self, calls: list[tuple[list[list[int]], list[int]]], exact: bool
    ) -> None:
        """Whatever was fed before (longer, other tokens, idle rows), each call scores its own rows."""
        slots = Slots(ScriptedDecoder(TABLE, batch_size=4))
        for rows, need in calls:
            need = [min(n, len(row)) for n, row in zip(need, rows, strict=True)]
            if any(need):
                check(rows, need, feed(slots, rows, need, exact))

    def test_feeds_nothing_twice(self) -> None:
        """A prompt takes the fewest forwards, and one more token takes one of the smallest width."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots(decoder)
        tokens = list(range(10)) * 2
        feed(slots, [tokens], [1])
        feed(slots, [[*tokens, 3]], [1])
        feed(slots, [[*tokens, 3, 4, 5, 6]], [3])

        assert [16, 5, 1, 5] == decoder.forwards

    def test_reuses_a_common_prefix(self) -> None:
        """Another prompt with the same beginning feeds only what differs."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots(decoder)
        feed(slots, [[1] * 30], [1])
        decoder.forwards.clear()
        rows = [[1] * 28 + [2, 3]]
        logits = feed(slots, rows, [1])
        check(rows, [1], logits)

        assert [5] == decoder.forwards

    def test_a_different_token_invalidates_what_follows(self) -> None:
        """After a rewind over one wrong token, the tokens behind it are fed anew."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots(decoder)
        feed(slots, [[1, 2, 3, 4, 5, 6]], [1])
        feed(slots, [[1, 9]], [1])
        check([[1, 9, 3, 4, 5, 6]], [1], feed(slots, [[1, 9, 3, 4, 5, 6]], [1]))

    def test_equal_tokens_leave_what_follows_valid(self) -> None:
        """After a rewind that fed what stood there anyway, only the last token is fed again."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots(decoder)
        feed(slots, [[1, 2, 3, 4, 5, 6]], [1])
        feed(slots, [[1, 2]], [1])
        decoder.forwards.clear()
        check([[1, 2, 3, 4, 5, 6]], [1], feed(slots, [[1, 2, 3, 4, 5, 6]], [1]))

        assert [1] == decoder.forwards

    def test_exact_width_uses_one_program(self) -> None:
        """Prompt and steps go through the widest program that scores every column."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots(decoder)
        feed(slots, [[1] * 12], [1], exact_width=True)
        feed(slots, [[1] * 13], [1], exact_width=True)

        assert {5} == set(decoder.forwards)

    def test_a_failed_forward_loses_nothing(self) -> None:
        """After a forward that raised, the same call succeeds and is right."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots(decoder)
        feed(slots, [[1, 2, 3]], [1])
        with pytest.raises(ValueError, match="ids"):
            feed(slots, [[1, 2, 99]], [1])
        check([[1, 2, 3, 4]], [1], feed(slots, [[1, 2, 3, 4]], [1]))

    def test_forget_feeds_everything_again(self) -> None:
        """After somebody else fed the decoder, forgetting makes the next call right."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots(decoder)
        feed(slots, [[1, 2, 3]], [1])
        decoder.forward(torch.tensor([[7]]), torch.tensor([1]))
        slots.forget()
        check([[1, 2, 3]], [1], feed(slots, [[1, 2, 3]], [1]))


class TestOf:
    def test_is_one_record_a_decoder(self) -> None:
        """Whoever asks gets the same slots, and another decoder has others."""
        one, other = ScriptedDecoder(TABLE), ScriptedDecoder(TABLE)

        assert Slots.of(one) is Slots.of(one)
        assert Slots.of(one) is not Slots.of(other)

    def test_does_not_keep_the_decoder(self) -> None:
        """The record goes with the decoder."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots.of(decoder)
        del decoder
        gc.collect()

        with pytest.raises(ReferenceError):
            _ = slots.decoder.shape
