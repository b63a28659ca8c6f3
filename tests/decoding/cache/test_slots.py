"""One rule by which tokens reach a decoder."""

import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.strategies import DrawFn

from decodekit.decoding import Draft, Slots
from decodekit.decoding.cache import slots as slots_module
from decodekit.testing import ScriptedDecoder, whole_prefix

from ...histories import history_of_rows

TABLE = torch.arange(97.0 * 11).reshape(97, 11)


def feed(slots: Slots, rows: list[list[int]], need: list[int], exact_width: bool = False) -> torch.Tensor:
    """Feed *rows*, with garbage behind each."""
    history = history_of_rows(rows, garbage=10)
    return slots.feed(history, history.length[:, 0], torch.tensor(need), exact_width=exact_width).logits


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
        """After a rewind that fed the same tokens, only the last token is fed again."""
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

    def test_exact_width_takes_nothing_that_followed_another_program(self) -> None:
        """Not even after the tokens before were fed again: these attended to what was there before."""
        slots = Slots(ScriptedDecoder(TABLE))
        prompt = [1, 2, 3, 4] * 4
        feed(slots, [prompt], [1])
        feed(slots, [[*prompt, 5, 6]], [1])
        feed(slots, [prompt], [1], exact_width=True)
        before = slots.counts.tokens
        feed(slots, [[*prompt, 5, 6, 7]], [1], exact_width=True)

        assert 3 == slots.counts.tokens - before

    def test_a_failed_forward_loses_nothing(self) -> None:
        """After a forward that raised, the same call succeeds and is right."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots(decoder)
        feed(slots, [[1, 2, 3]], [1])
        with pytest.raises(ValueError, match="ids"):
            feed(slots, [[1, 2, 99]], [1])
        check([[1, 2, 3, 4]], [1], feed(slots, [[1, 2, 3, 4]], [1]))

    def test_refuses_to_score_more_than_the_decoder_does(self) -> None:
        """No program would ever score it."""
        with pytest.raises(ValueError, match=r"'need' must be <= 5, the scored width: got 6"):
            feed(Slots(ScriptedDecoder(TABLE)), [[1] * 12], [6])

    def test_forget_feeds_everything_again(self) -> None:
        """After the decoder was fed by other means, forget() makes the next call right."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots(decoder)
        feed(slots, [[1, 2, 3]], [1])
        decoder.forward(torch.tensor([[7]]), torch.tensor([1]))
        slots.forget()
        check([[1, 2, 3]], [1], feed(slots, [[1, 2, 3]], [1]))

    def test_refuses_what_cannot_be_scored(self) -> None:
        """More columns than a forward scores: no number of forwards would do."""
        with pytest.raises(ValueError, match="'need' must be <= 5, the scored width: got 6"):
            feed(Slots(ScriptedDecoder(TABLE)), [list(range(10))], [6])


@attrs.frozen(eq=False)
class Trees:
    """The draft trees of a few rows, ``(token, parent)`` for each draft token."""

    rows: list[list[tuple[int, int]]]

    def column(self, i: int, padding: int) -> torch.Tensor:
        """Ids (0) or parents (1), ``[rows, n]``, with *padding* behind them."""
        n = max(map(len, self.rows))
        values = [[node[i] for node in row] + [padding] * (n - len(row)) for row in self.rows]
        return torch.tensor(values, dtype=torch.int64).reshape(len(values), n)

    def path(self, row: int, node: int) -> list[int]:
        """The ids on the path to a draft token, itself included; none for -1."""
        if node < 0:
            return []
        token, parent = self.rows[row][node]
        return [*self.path(row, parent), token]

    def paths(self, row: int) -> list[list[int]]:
        """The path of every draft token."""
        return [self.path(row, node) for node in range(len(self.rows[row]))]


def feed_tree(
    slots: Slots, rows: list[list[int]], trees: Trees, active: list[bool] | None = None
) -> torch.Tensor:
    """Feed *rows*, garbage after each, and *trees*, with arbitrary parents under the padding."""
    history = history_of_rows(rows, garbage=10)
    draft = Draft(trees.column(0, -1), parents=trees.column(1, 77))
    feeding = torch.tensor(active or [True] * len(rows))
    return slots.feed_tree(history, history.length[:, 0], draft, feeding)


def check_tree(rows: list[list[int]], trees: Trees, active: list[bool], logits: torch.Tensor) -> None:
    """Every column is the table's line for the row and the path to its draft token."""
    for row, tokens in enumerate(rows):
        for i, path in enumerate([[], *trees.paths(row)] if active[row] else []):
            assert torch.equal(TABLE[whole_prefix([*tokens, *path]) % 97], logits[row, i])


@st.composite
def drafts(draw: DrawFn) -> Trees:
    """Trees of up to six draft tokens over three rows."""
    return Trees(
        [
            [(draw(st.integers(0, 3)), draw(st.integers(-1, i - 1))) for i in range(draw(st.integers(0, 6)))]
            for _ in range(3)
        ]
    )


def tree_decoder(**options: Any) -> ScriptedDecoder:
    """One that scores trees of two widths."""
    return ScriptedDecoder(TABLE, tree_widths=(4, 9), **options)


CHAIN = Trees([[(7, -1), (8, 0), (9, 1)]])
FORK = Trees([[(7, -1), (8, -1), (9, 0), (6, 1)]])
"""7 9 is the first branch, 8 6 the other."""


class TestFeedTree:
    @given(
        st.lists(
            st.one_of(
                st.tuples(ROWS, st.lists(st.integers(0, 5), min_size=3, max_size=3)),
                st.tuples(ROWS, st.tuples(drafts(), st.lists(st.booleans(), min_size=3, max_size=3))),
            ),
            max_size=6,
        )
    )
    def test_scores_rows_and_trees(self, calls: list[tuple[list[list[int]], Any]]) -> None:
        """Whatever was fed before, each call scores its own rows and draft tokens."""
        slots = Slots(tree_decoder(batch_size=4))
        for rows, how in calls:
            if isinstance(how, tuple):
                check_tree(rows, *how, feed_tree(slots, rows, *how))
            elif any(need := [min(n, len(row)) for n, row in zip(how, rows, strict=True)]):
                check(rows, need, feed(slots, rows, need))

    def test_one_forward_scores_the_last_token_and_the_tree(self) -> None:
        """What is pending goes in front, through the smallest width that takes both."""
        decoder = tree_decoder()
        slots = Slots(decoder)
        feed(slots, [[1, 2, 3]], [1])
        decoder.forwards.clear()
        feed_tree(slots, [[1, 2, 3]], CHAIN)
        feed_tree(slots, [[1, 2, 3, 4, 5]], FORK)

        assert [4, 9] == decoder.forwards
        assert 3 == slots.counts.forwards

    def test_what_does_not_fit_goes_first(self) -> None:
        """Through ordinary forwards, until the rest fits."""
        decoder = tree_decoder()
        rows = [list(range(10)) * 2]
        check_tree(rows, FORK, [True], feed_tree(Slots(decoder), rows, FORK))

        assert [16, 9] == decoder.forwards

    @pytest.mark.parametrize(("accepted", "fed"), [([7, 9], 1), ([8, 6], 3), ([7], 1), ([], 1)])
    def test_the_first_branch_needs_no_feeding_again(self, accepted: list[int], fed: int) -> None:
        """After it only the new token is fed; after another branch, that as well."""
        decoder = ScriptedDecoder(TABLE, widths=(1, 2, 3, 4), scored_width=4, tree_widths=(9,))
        slots = Slots(decoder)
        feed_tree(slots, [[1, 2]], FORK)
        decoder.forwards.clear()
        rows = [[1, 2, *accepted, 5]]
        check(rows, [1], feed(slots, rows, [1]))

        assert [fed] == decoder.forwards

    def test_another_first_branch_invalidates_what_follows(self) -> None:
        """After a tree over the middle of a text, later tokens are fed again."""
        slots = Slots(tree_decoder())
        feed(slots, [[1, 2, 3, 4, 5, 6]], [1])
        feed_tree(slots, [[1, 2]], FORK)
        check([[1, 2, 7, 9, 5, 6]], [1], feed(slots, [[1, 2, 7, 9, 5, 6]], [1]))

    def test_idle_rows_stay_as_they_are(self) -> None:
        """Their next token is all that they are fed afterwards."""
        decoder = tree_decoder(batch_size=2)
        slots = Slots(decoder)
        rows = [[1, 2, 3], [4, 5, 6, 7]]
        feed(slots, rows, [1, 1])
        feed_tree(slots, rows, Trees([*FORK.rows, *CHAIN.rows]), [True, False])
        decoder.forwards.clear()
        rows[1].append(8)
        check(rows, [0, 1], feed(slots, rows, [0, 1]))

        assert [1] == decoder.forwards

    def test_a_tree_is_another_program(self) -> None:
        """With exact_width, tokens that came through a tree forward are fed again."""
        decoder = ScriptedDecoder(TABLE, widths=(1, 4), scored_width=4, tree_widths=(4,))
        slots = Slots(decoder)
        feed_tree(slots, [[1, 2]], Trees([[]]))
        decoder.forwards.clear()
        feed(slots, [[1, 2, 3, 4, 5]], [1], exact_width=True)

        assert [4, 4] == decoder.forwards

    def test_a_failed_forward_loses_nothing(self) -> None:
        """After a tree that raised, what is fed next is right."""
        slots = Slots(tree_decoder())
        feed_tree(slots, [[1, 2]], FORK)
        with pytest.raises(ValueError, match="ids"):
            feed_tree(slots, [[1, 2]], Trees([[(99, -1)]]))
        check([[1, 2, 7, 9, 4]], [1], feed(slots, [[1, 2, 7, 9, 4]], [1]))

    def test_refuses_what_cannot_be_scored(self) -> None:
        """A decoder without trees, and a tree beyond the largest width."""
        with pytest.raises(ValueError, match="got one that does not"):
            feed_tree(Slots(ScriptedDecoder(TABLE)), [[1, 2]], CHAIN)
        with pytest.raises(ValueError, match=r"must have < 9 draft tokens, .*: got 9"):
            feed_tree(Slots(tree_decoder()), [[1, 2]], Trees([[(1, -1)] * 9]))


class TestOf:
    def test_slots_of_a_dead_decoder_are_not_reused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where an interrupt prevented their removal, and a new decoder has the old one's address."""
        decoder, old = ScriptedDecoder(TABLE), ScriptedDecoder(TABLE)
        monkeypatch.setitem(slots_module._slots, id(decoder), Slots.of(old))
        slots = Slots.of(decoder)

        assert slots is not Slots.of(old)
        assert slots is Slots.of(decoder)

    def test_is_one_record_a_decoder(self) -> None:
        """Every call gets the same slots; another decoder has others."""
        one, other = ScriptedDecoder(TABLE), ScriptedDecoder(TABLE)

        assert Slots.of(one) is Slots.of(one)
        assert Slots.of(one) is not Slots.of(other)

    def test_is_one_record_for_threads_that_meet_it_together(self) -> None:
        """Two records would be two locks, and each would not know what the other has fed."""
        both_here = threading.Barrier(2)

        class Slow(ScriptedDecoder):
            """Accessing its shape waits for another thread."""

            def __getattribute__(self, name: str) -> Any:
                if name == "shape":
                    with contextlib.suppress(threading.BrokenBarrierError):
                        both_here.wait(timeout=0.2)
                return super().__getattribute__(name)

        decoder = Slow(TABLE)
        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(Slots.of, [decoder, decoder])

        assert one is other

    def test_does_not_keep_the_decoder(self) -> None:
        """The record goes with the decoder."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots.of(decoder)
        del decoder
        gc.collect()

        with pytest.raises(ReferenceError):
            _ = slots.decoder.shape
