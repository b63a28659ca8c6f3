"""How many columns of a prompt a step beside rows that decode takes."""

import pytest
import torch

from decodekit.decoding import Batcher, Generator, Greedy, MaxNewTokens
from decodekit.decoding.cache.slots import feeder_of
from decodekit.decoding.serving.prefill_pace import TokenPace, WidthPace, prefill_pace
from decodekit.processors import TopK
from decodekit.testing import ScriptedDecoder

from ..engine.queueing_decoder import QueueingDecoder


@pytest.fixture
def pace() -> WidthPace:
    """Up to 40 milliseconds a step."""
    return WidthPace(widths=(1, 8, 64), most=64, max_gap=0.04)


def test_begins_narrow(pace: WidthPace) -> None:
    """Before anything is measured."""
    assert 8 == pace.columns


def test_a_wide_step_that_is_too_long_is_not_tried_again(pace: WidthPace) -> None:
    """The next narrower one is expected to take less."""
    pace.learn(8, 8, 0.004)
    assert 64 == pace.columns
    pace.learn(64, 64, 0.05)
    pace.learn(64, 64, 0.05)

    assert 8 == pace.columns


@pytest.mark.parametrize("fast", [0, 20])
def test_one_step_may_be_slow(pace: WidthPace, fast: int) -> None:
    """For reasons of the machine: the width is tried again, even if it was the first step."""
    pace.learn(8, 8, 0.004)
    for _ in range(fast):
        pace.learn(64, 64, 0.02)
    pace.learn(64, 64, 2.0)
    assert 64 == pace.columns
    for _ in range(3):
        pace.learn(64, 64, 0.02)
        pace.learn(64, 64, 0.041)

    assert 64 == pace.columns


def test_a_step_of_padding_does_not_make_whole_ones_look_short(pace: WidthPace) -> None:
    """The end of a prompt in a wide forward takes less time than a whole chunk."""
    pace.learn(8, 8, 0.004)
    pace.learn(64, 64, 0.05)
    for _ in range(20):
        pace.learn(64, 1, 0.01)
    pace.learn(64, 64, 0.05)

    assert 8 == pace.columns


def test_a_long_step_of_padding_shows_that_whole_ones_are_longer(pace: WidthPace) -> None:
    """On a machine that has become slower, for example."""
    pace.learn(64, 64, 0.03)
    assert 64 == pace.columns
    for _ in range(5):
        pace.learn(64, 1, 0.06)

    assert 8 == pace.columns


def test_a_first_step_of_padding_says_nothing(pace: WidthPace) -> None:
    """A chunk may take several times as long."""
    pace.learn(64, 1, 0.01)

    assert 8 == pace.columns


class TestTokens:
    """Where padding takes no time, as many tokens as fit."""

    @pytest.mark.parametrize("fixed", [0.0, 0.02, 0.06])
    @pytest.mark.parametrize("each", [0.0002, 0.002, 0.006])
    def test_steps_come_close_to_the_bound_and_stay_within(self, fixed: float, each: float) -> None:
        """Whatever a step and a token take; also after a step of all rows' prompts, which is not bounded."""
        pace = TokenPace(most=64, max_gap=0.1)
        pace.learn(64, 64, fixed + 64 * each)
        for _ in range(40):
            pace.learn(64, pace.columns, fixed + pace.columns * each)
            after = fixed + pace.columns * each

        fits = min(64, (0.1 - fixed) / each)
        assert after <= 0.1 or pace.columns == 8
        assert min(fits, 64) - 2 <= pace.columns or fits < 10

    def test_a_short_chunk_says_nothing_unless_it_is_slow(self) -> None:
        """It may be the end of a prompt."""
        pace = TokenPace(most=64, max_gap=0.1)
        pace.learn(64, 3, 0.001)
        assert 16 == pace.columns
        pace.learn(64, 12, 0.12)

        assert 10 == pace.columns

    def test_one_slow_step_halves_at_most(self) -> None:
        """It may be another process's."""
        pace = TokenPace(most=64, max_gap=0.1)
        pace.learn(64, 64, 0.05)
        assert 64 == pace.columns
        pace.learn(64, 64, 5.0)

        assert 32 == pace.columns

    def test_without_a_bound_it_is_the_most(self) -> None:
        """Whatever steps take."""
        pace = TokenPace(most=24)
        pace.learn(64, 24, 10.0)

        assert 24 == pace.columns

    @pytest.mark.parametrize(
        ("row_widths", "skips", "expected"),
        [((16,), True, TokenPace), ((16,), False, WidthPace), ((), True, WidthPace)],
    )
    def test_is_chosen_for_rows_that_skip_padding(
        self, row_widths: tuple[int, ...], skips: bool, expected: type
    ) -> None:
        """Forwards of all rows are padded to a width."""
        decoder = SkippingDecoder(torch.eye(9), batch_size=2, row_widths=row_widths)
        decoder.skips_padding = skips

        assert isinstance(prefill_pace(feeder_of(decoder), 16, 0.1), expected)

    def test_is_at_most_one_forward(self) -> None:
        """Whatever width is asked for."""
        decoder = SkippingDecoder(torch.eye(9), batch_size=2, row_widths=(16,))

        assert 16 == prefill_pace(feeder_of(decoder), 100).columns

    def test_chunks_have_as_many_tokens(self) -> None:
        """In one forward a step, and the answer is the same."""
        decoder = SkippingDecoder(2 * torch.eye(9), batch_size=2, max_length=96, row_widths=(16,))
        parts = Generator(decoder, stop=MaxNewTokens(6)).parts
        batcher = Batcher(decoder, prefill_width=7)
        first = batcher.submit(parts, [1])
        batcher.step()
        second = batcher.submit(parts, [2] * 40)
        fed = []
        while not second.done:
            before = feeder_of(decoder).counts
            batcher.step()
            fed.append(feeder_of(decoder).counts.since(before).row_tokens)

        assert [7, 7, 7, 7] == [tokens for tokens in fed if tokens][:4]
        assert Generator(decoder, stop=MaxNewTokens(6))([2] * 40).ids == second.result().ids
        assert 6 == len(first.result().ids[0])


class SkippingDecoder(ScriptedDecoder):
    """Says that padding takes no time."""

    skips_padding: bool = True


def test_nothing_is_learned_from_a_forward_that_was_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step only reads the sample, which takes no time where the device is done."""
    learned: list[int] = []
    monkeypatch.setattr(WidthPace, "learn", lambda self, columns, tokens, seconds: learned.append(columns))
    chain, sampler = TopK(3), Greedy()
    decoder = QueueingDecoder(
        2 * torch.eye(9), batch_size=2, max_length=48, processors=chain, sampler=sampler
    )
    generator = Generator(decoder, processors=chain, sampler=sampler, stop=MaxNewTokens(20))
    batcher, parts = Batcher(decoder), generator.parts
    batcher.submit(parts, [1])
    for _ in range(4):
        batcher.step()
    assert 3 < decoder.fed_unread
    assert [] == learned
    batcher.submit(parts, [2] * 40)
    for _ in range(5):
        batcher.step()

    # The forward that is ahead is read first; then the prompt is fed beside the row that decodes.
    assert [16, 16, 16] == learned
