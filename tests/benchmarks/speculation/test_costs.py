"""Formula and figures of the speculation benchmark."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from decodekit.benchmarks.models.bundled_pair import pair_folder
from decodekit.benchmarks.speculation.costs import Costs, by_formula, conditional_acceptance
from decodekit.benchmarks.speculation.pair import NegatedDecoder
from decodekit.decoding import Generator, MaxNewTokens, SpeculationStep
from decodekit.neuron_backend import StaticDecoder
from decodekit.speculation import DraftModel


def a_step(drafted: tuple[int, ...], accepted: tuple[int, ...]) -> SpeculationStep:
    """A step without times."""
    return SpeculationStep(max(drafted), drafted, accepted, 0.0, 0.0, 0.0)


class TestFormula:
    def test_tokens_over_costs(self) -> None:
        """Two steps of 3 tokens and 1, each with 2 draft forwards and a target forward of the next width."""
        of = Costs(0.01, 0.1, {1: 1.0, 2: 1.1, 5: 1.3})
        steps = [a_step((2,), (2,)), a_step((2,), (0,))]

        assert pytest.approx(4 / (2 * (0.2 + 1.3))) == by_formula(steps, of, 1.0)

    def test_what_the_stop_cut_off_is_no_gain(self) -> None:
        """Keeping three of four tokens gives three quarters of the speed-up."""
        of = Costs(0.01, 0.1, {1: 1.0, 2: 1.1, 5: 1.3})

        assert pytest.approx(3 / (0.3 + 1.3)) == by_formula([a_step((3,), (3,))], of, 0.75)

    def test_plain_steps(self) -> None:
        """Without drafts the speed-up is 1, for any number of rows."""
        of = Costs(0.01, 0.1, {1: 1.0, 5: 1.3})

        assert 1.0 == by_formula([a_step((0, 0), (0, 0))] * 3, of, 1.0)


def test_conditional_acceptance() -> None:
    """Draft tokens after a rejected one are not counted."""
    steps = [a_step((3,), (3,)), a_step((3, 1), (1, 0)), a_step((3,), (0,))]

    assert [0.5, 0.5, 1.0] == conditional_acceptance(steps)


def test_a_negated_draft_is_always_wrong() -> None:
    """It takes as many forwards as the draft it wraps."""
    target, draft = (
        StaticDecoder(
            AutoModelForCausalLM.from_pretrained(pair_folder() / name, dtype=torch.float32),
            max_length=96,
            widths=(1, 3, 16),
        )
        for name in ("target", "draft")
    )
    drafter = DraftModel(NegatedDecoder(draft))
    generator = Generator(target, drafter=drafter, num_draft_tokens=2, stop=MaxNewTokens(24))
    statistics = generator([[5, 6, 7]]).statistics

    assert sum(statistics.drafted) > 20
    assert 0 == sum(statistics.accepted)
