"""How many columns of a prompt a step beside rows that decode takes."""

import pytest
import torch

from decodekit.decoding import Batcher, Generator, Greedy, MaxNewTokens
from decodekit.decoding.serving.prefill_pace import PrefillPace
from decodekit.processors import TopK

from ..engine.queueing_decoder import QueueingDecoder


@pytest.fixture
def pace() -> PrefillPace:
    """Up to 40 milliseconds a step."""
    return PrefillPace(widths=(1, 8, 64), most=64, max_gap=0.04)


def test_begins_narrow(pace: PrefillPace) -> None:
    """Before anything is measured."""
    assert 8 == pace.columns


def test_a_wide_step_that_is_too_long_is_not_tried_again(pace: PrefillPace) -> None:
    """The next narrower one is expected to take less."""
    pace.learn(8, 0.004)
    assert 64 == pace.columns
    pace.learn(64, 0.05)

    assert 8 == pace.columns


def test_a_step_of_padding_does_not_make_whole_ones_look_short(pace: PrefillPace) -> None:
    """The end of a prompt in a wide forward takes less time than a whole chunk."""
    pace.learn(8, 0.004)
    pace.learn(64, 0.05)
    for _ in range(20):
        pace.learn(64, 0.01, whole=False)

    assert 8 == pace.columns


def test_a_long_step_of_padding_shows_that_whole_ones_are_longer(pace: PrefillPace) -> None:
    """On a machine that has become slower, for example."""
    pace.learn(64, 0.03)
    assert 64 == pace.columns
    for _ in range(5):
        pace.learn(64, 0.06, whole=False)

    assert 8 == pace.columns


def test_a_first_step_of_padding_says_nothing(pace: PrefillPace) -> None:
    """A chunk may take several times as long."""
    pace.learn(64, 0.01, whole=False)

    assert 8 == pace.columns


def test_nothing_is_learned_from_a_forward_that_was_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step only reads the sample, which takes no time where the device is done."""
    learned: list[int] = []
    monkeypatch.setattr(PrefillPace, "learn", lambda self, width, seconds, whole=True: learned.append(width))
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
