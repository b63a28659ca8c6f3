"""Rows that are fed by themselves, and rows that are copied, before all are scored together."""

import itertools

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import Generator, MaxNewTokens, Sample, Slots
from decodekit.decoding.cache.row_feeder import columns_of_forwards
from decodekit.decoding.token_feeder import Fed
from decodekit.testing import ScriptedDecoder, whole_prefix

from ...histories import history_of_rows

TABLE = torch.arange(97.0 * 11).reshape(97, 11)
WIDTHS = (1, 5, 16)


def decoder(rows: int = 4, **options: object) -> ScriptedDecoder:
    """Any forward that is fed wrongly, late or in another row gives other logits."""
    return ScriptedDecoder(TABLE, batch_size=rows, widths=WIDTHS, scored_width=5, **options)


def feed(slots: Slots, rows: list[list[int]], need: list[int], most: int | None = None) -> Fed:
    """Feed *rows*."""
    history = history_of_rows(rows, garbage=10)
    return slots.feed(history, history.length[:, 0], torch.tensor(need), most=most)


def expected(tokens: list[int]) -> Tensor:
    """The logits after *tokens*."""
    return TABLE[whole_prefix(tokens) % 97]


ROWS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), min_size=3, max_size=3)
CALLS = st.lists(st.tuples(ROWS, st.lists(st.integers(0, 5), min_size=3, max_size=3)), max_size=6)


class TestFeed:
    @given(
        CALLS, st.sampled_from([(), (16,), (5, 16), (1,)]), st.booleans(), st.sampled_from([None, 1, 5, 20])
    )
    def test_scores_what_the_rows_say(
        self,
        calls: list[tuple[list[list[int]], list[int]]],
        row_widths: tuple[int, ...],
        copies: bool,
        most: int | None,
    ) -> None:
        """Whatever was fed or copied before, and in however many steps, each row scores its own tokens."""
        slots = Slots(decoder(row_widths=row_widths, copies_rows=copies))
        for rows, wanted in calls:
            need = [min(n, len(row)) for n, row in zip(wanted, rows, strict=True)]
            if not any(need):
                continue
            left = list(need)
            for _ in range(200):
                fed = feed(slots, rows, left, most)
                for row, ready in enumerate(fed.ready):
                    for i in range(left[row] if ready else 0):
                        tokens = rows[row][: len(rows[row]) - left[row] + i + 1]
                        assert torch.equal(expected(tokens), fed.logits[row, i])
                assert fed.all_ready == all(ready or not n for ready, n in zip(fed.ready, left, strict=True))
                left = [0 if ready else n for n, ready in zip(left, fed.ready, strict=True)]
                if not any(left):
                    break
            assert not any(left), "a row is never scored"

    def test_a_prompt_is_fed_without_the_rows_beside_it(self) -> None:
        """Forty tokens beside three rows that decode: three forwards of one row, and one of all."""
        slots = Slots(decoder(row_widths=(16,)))
        rows = [[1, 2], [3, 4], [5, 6], list(range(10)) * 4]
        feed(slots, [*rows[:3], [0]], [1, 1, 1, 0])
        columns = slots.counts.columns

        fed = feed(slots, [[1, 2, 3], [3, 4, 5], [5, 6, 7], rows[3]], [1, 1, 1, 1])

        assert fed.all_ready
        assert 3 * 16 + 4 == slots.counts.columns - columns
        assert 3 * 16 == slots.counts.row_columns
        assert 39 == slots.counts.row_tokens

    def test_a_chunk_leaves_the_others_their_step(self) -> None:
        """With a bound, rows that decode are scored in every step, and the newcomer after its last chunk."""
        slots = Slots(decoder(row_widths=(16,)))
        prompt = list(range(10)) * 4
        ready = []
        for step in range(1, 5):
            fed = feed(slots, [[1, 2, 3, 4, 5][:step], prompt], [1, 1], most=16)
            ready.append(fed.ready)

        assert [[True, False], [True, False], [True, True], [True, True]] == ready

    def test_nothing_is_scored_while_all_wait(self) -> None:
        """Two newcomers: the first is caught up before the second begins."""
        slots = Slots(decoder(rows=4, row_widths=(16,)))
        prompts = [[1] * 30, [2] * 30]
        found = [feed(slots, prompts, [1, 1], most=16).ready for _ in range(4)]

        assert [[False, False], [True, False], [True, False], [True, True]] == found

    def test_unscored_logits_are_refused(self) -> None:
        """They belong to no scored row."""
        fed = feed(Slots(decoder(row_widths=(16,))), [[1] * 40], [1], most=16)

        with pytest.raises(RuntimeError, match="not ready"):
            _ = fed.logits

    def test_equal_prompts_are_fed_once(self) -> None:
        """Four rows of one prompt: one row is fed, three are copied."""
        slots = Slots(decoder(row_widths=(16,), copies_rows=True))
        prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]

        fed = feed(slots, [prompt] * 4, [1] * 4)

        assert fed.all_ready
        assert 16 + 4 == slots.counts.tokens
        assert [0, 16, 16, 16] == slots.copied

    def test_rows_that_wait_copy_once(self) -> None:
        """Not what is new in every step: a copy takes as long as all that is held."""
        slots = Slots(decoder(rows=4, row_widths=(16,), copies_rows=True))
        prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3] * 6
        copied = [list(slots.copied)]
        while not feed(slots, [prompt] * 4, [1] * 4, most=16).all_ready:
            copied.append(list(slots.copied))
        copied.append(list(slots.copied))

        changes = [sum(map(int.__ne__, *both)) for both in itertools.pairwise(copied)]
        assert 3 == sum(changes)
        assert [0, *slots.copied[1:]] == slots.copied
        assert 59 - 16 <= slots.copied[1]

    def test_what_another_row_holds_is_copied(self) -> None:
        """Without forwards of one row too."""
        slots = Slots(decoder(copies_rows=True))
        prompt = list(range(10)) * 3
        feed(slots, [prompt, [1]], [1, 1])
        tokens = slots.counts.tokens

        feed(slots, [[*prompt, 1], [*prompt, 2]], [1, 1])

        assert [0, 30] == slots.copied[:2]
        assert 2 == slots.counts.tokens - tokens

    def test_a_copy_that_fails_loses_the_row_only(self) -> None:
        """The next feed is right."""

        class Fails(ScriptedDecoder):
            def copy_rows(self, source: Tensor, upto: int) -> None:
                super().copy_rows(source, upto)
                raise OSError("lost")

        inner = Fails(TABLE, batch_size=2, widths=WIDTHS, scored_width=5, copies_rows=True)
        slots = Slots(inner)
        prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
        feed(slots, [prompt, [5]], [1, 1])
        for _ in range(2):
            with pytest.raises(OSError, match="lost"):
                feed(slots, [prompt, prompt], [1, 1])
        slots._rows.copies = False

        fed = feed(slots, [prompt, prompt], [1, 1])

        assert torch.equal(expected(prompt), fed.logits[1, 0])


class TestCopyRows:
    def test_a_permutation_is_exchanged_at_once(self) -> None:
        """Each row goes on as another did, and nothing but the new token is fed."""
        slots = Slots(decoder(rows=3, copies_rows=True))
        rows = [[1, 2, 3], [4, 5], [6]]
        feed(slots, rows, [1, 1, 1])
        tokens = slots.counts.tokens

        assert slots.copy_rows([2, 0, 1])
        fed = feed(slots, [[6, 7], [1, 2, 3, 7], [4, 5, 7]], [1, 1, 1])

        assert 3 == slots.counts.tokens - tokens
        assert torch.equal(expected([1, 2, 3, 7]), fed.logits[1, 0])

    def test_is_false_where_the_decoder_cannot(self) -> None:
        """Then the next feed feeds again."""
        slots = Slots(decoder(rows=2))
        feed(slots, [[1, 2], [3]], [1, 1])

        assert not slots.copy_rows([1, 0])
        assert torch.equal(expected([3, 5]), feed(slots, [[3, 5], [1, 2, 5]], [1, 1]).logits[0, 0])

    @pytest.mark.parametrize("source", [[0], [0, 2], [-1, 0]])
    def test_refuses_rows_that_are_none(self, source: list[int]) -> None:
        """Before anything changes."""
        with pytest.raises(ValueError, match="'source' must name one of 2 rows for each row"):
            Slots(decoder(rows=2, copies_rows=True)).copy_rows(source)


@given(st.integers(0, 100), st.sampled_from([(1,), (5,), (1, 5, 16), (4, 16)]))
def test_columns_of_forwards(missing: int, widths: tuple[int, ...]) -> None:
    """The widest as often as it fits, then the narrowest that takes the rest."""
    left, columns = missing, 0
    while left > 0:
        width = min((one for one in widths if one >= left), default=widths[-1])
        left, columns = left - width, columns + width

    assert columns == columns_of_forwards(missing, widths)


class Spans(ScriptedDecoder):
    """With programs of two spans."""

    spans = (32, 64)

    def forward(self, ids: Tensor, cache_pos: Tensor, span: int | None = None) -> Tensor:
        """Whatever the span."""
        return super().forward(ids, cache_pos)


def test_an_exact_width_does_not_take_what_a_program_of_one_row_wrote() -> None:
    """Which is another program than that of the same width and the whole span."""
    slots = Slots(Spans(TABLE, batch_size=3, widths=WIDTHS, scored_width=5, row_widths=(5, 16)))
    history = history_of_rows([[1] * 6, [2, 2], [2, 2]], garbage=10)
    length, need = history.length[:, 0], torch.ones(3, dtype=torch.int64)
    slots.feed(history, length, need)
    assert slots.counts.row_columns
    tokens = slots.counts.tokens
    slots.feed(history, length, need, exact_width=True)

    assert 6 + 2 + 2 == slots.counts.tokens - tokens


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("row_widths", [(), (16,)])
@pytest.mark.parametrize("samples", [1, 2, 3, 7])
def test_samples_are_separate_calls(copies: bool, row_widths: tuple[int, ...], samples: int) -> None:
    """A call with several samples gives what as many calls give, on any number of rows."""
    parts = {"sampler": Sample(seed=3), "stop": MaxNewTokens(6)}
    prompts = [[1, 2, 3, 1, 2, 3, 9, 9, 9], [4]]
    alone = [
        Generator(decoder(rows=1), **parts)([prompt], random_streams=[samples * number + sample]).ids[0]
        for number, prompt in enumerate(prompts)
        for sample in range(samples)
    ]
    generator = Generator(decoder(rows=4, copies_rows=copies, row_widths=row_widths), **parts)

    assert alone == generator(prompts, num_samples=samples).ids
    assert alone == [
        [token for event in events for token in event.ids]
        for events in _by_row(list(generator.stream(prompts, num_samples=samples)), len(alone))
    ]


def _by_row(events: list, rows: int) -> list[list]:
    return [[event for event in events if event.row == row] for row in range(rows)]


@pytest.mark.parametrize("samples", [0, -1, 1.5, True])
def test_refuses_numbers_of_samples_that_are_none(samples: object) -> None:
    """Before anything is fed."""
    with pytest.raises((TypeError, ValueError), match="'num_samples' must be"):
        Generator(decoder())([1], num_samples=samples)


def test_reused_tokens_are_counted() -> None:
    """Of four samples, three reuse what the first was fed by itself; the rest is one forward of all."""
    generator = Generator(decoder(copies_rows=True, row_widths=(16,)), stop=MaxNewTokens(2))

    assert 3 * 16 == generator([[1] * 20], num_samples=4).statistics.reused
