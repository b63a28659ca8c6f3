"""What the benchmark of speculation makes of rounds and costs."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM

from decodekit.decoding import Generator, MaxNewTokens, Round
from decodekit.neuron_backend import StaticDecoder
from decodekit.speculation import DraftModel


@pytest.fixture(scope="module")
def costs(script: Callable[[str], ModuleType]) -> ModuleType:
    """What is made of rounds and costs."""
    return script("speculation_costs")


def a_round(drafted: tuple[int, ...], accepted: tuple[int, ...]) -> Round:
    """One that took no time."""
    return Round(max(drafted), drafted, accepted, 0.0, 0.0, 0.0)


class TestFormula:
    def test_tokens_over_costs(self, costs: ModuleType) -> None:
        """Two rounds of 3 tokens and 1, each 2 draft forwards and a target's of the next wider width."""
        of = costs.Costs(0.01, 0.1, {1: 1.0, 2: 1.1, 5: 1.3})
        rounds = [a_round((2,), (2,)), a_round((2,), (0,))]

        assert pytest.approx(4 / (2 * (0.2 + 1.3))) == costs.by_formula(rounds, of, 1.0)

    def test_what_the_stop_cut_off_is_no_gain(self, costs: ModuleType) -> None:
        """Three of four tokens kept are three quarters of the speed-up."""
        of = costs.Costs(0.01, 0.1, {1: 1.0, 2: 1.1, 5: 1.3})

        assert pytest.approx(3 / (0.3 + 1.3)) == costs.by_formula([a_round((3,), (3,))], of, 0.75)

    def test_plain_rounds(self, costs: ModuleType) -> None:
        """Without drafts nothing is gained or lost, whatever the number of rows."""
        of = costs.Costs(0.01, 0.1, {1: 1.0, 5: 1.3})

        assert 1.0 == costs.by_formula([a_round((0, 0), (0, 0))] * 3, of, 1.0)


def test_standing(costs: ModuleType) -> None:
    """A guess behind one that fell was not judged."""
    rounds = [a_round((3,), (3,)), a_round((3, 1), (1, 0)), a_round((3,), (0,))]

    assert [0.5, 0.5, 1.0] == costs.standing(rounds)


def test_a_contrary_draft_is_always_wrong(script: Callable[[str], ModuleType]) -> None:
    """And it costs forwards like the draft that it is made of."""
    target, draft = (
        StaticDecoder(
            AutoModelForCausalLM.from_pretrained(script("acceptance").PAIR / name, dtype=torch.float32),
            max_length=96,
            widths=(1, 3, 16),
        )
        for name in ("target", "draft")
    )
    drafter = DraftModel(script("speculation_runs").Contrary(draft))
    generator = Generator(target, drafter=drafter, num_draft_tokens=2, stop=MaxNewTokens(24))
    statistics = generator([[5, 6, 7]]).statistics

    assert sum(statistics.drafted) > 20
    assert 0 == sum(statistics.accepted)
