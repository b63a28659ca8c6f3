"""Parts beside a decoder that is divided over processes."""

from typing import Any

import pytest
import torch
from transformers import MaxLengthCriteria, MaxTimeCriteria

from decodekit.decoding import (
    Generator,
    MaxNewTokens,
    MaxTime,
    NotBefore,
    Sample,
    StochasticBeams,
    stop_from_transformers,
)
from decodekit.processors import Grammar
from decodekit.speculation import (
    AdaptiveLength,
    DraftModel,
    ForcedTokens,
    Mixture,
    PromptLookup,
    SpeculativeGenerator,
)
from decodekit.testing import ScriptedDecoder

from ...processors.grammar.languages import Brackets


class Divided(ScriptedDecoder):
    """A decoder that says that it is divided over processes."""

    in_lockstep = True


DIVIDED, WHOLE = Divided(torch.eye(6)), ScriptedDecoder(torch.eye(6))
MODEL = DraftModel(ScriptedDecoder(torch.eye(6)))


@pytest.mark.parametrize(
    ("parts", "part"),
    [
        ({"stop": MaxTime(3.0)}, "stop"),
        ({"stop": stop_from_transformers([MaxLengthCriteria(9), MaxTimeCriteria(3.0)])}, "stop"),
        ({"stop": MaxNewTokens(5) | NotBefore(2, MaxTime(3.0))}, "stop"),
        ({"drafter": PromptLookup(), "num_draft_tokens": AdaptiveLength(2)}, "num_draft_tokens"),
        ({"drafter": Mixture([PromptLookup(), MODEL])}, "drafter"),
        ({"drafter": Mixture([Mixture([MODEL])], costs=[0.5])}, "drafter"),
        ({"drafter": ForcedTokens(Grammar(Brackets(2)), Mixture([MODEL]))}, "drafter"),
    ],
)
def test_what_decides_by_time_is_refused(parts: dict[str, Any], part: str) -> None:
    """Before a process waits for another; a decoder of one process takes it."""
    Generator(WHOLE, **parts)

    with pytest.raises(ValueError, match=f"'{part}' must not decide by time where the decoder is divided"):
        Generator(DIVIDED, **parts)


def test_a_seed_of_its_own_is_refused() -> None:
    """Each process would draw another."""
    for refused in (lambda: Generator(DIVIDED, sampler=Sample()), lambda: StochasticBeams(DIVIDED, beams=1)):
        with pytest.raises(ValueError, match="'seed' must be a number where the decoder is divided"):
            refused()
    Generator(DIVIDED, sampler=Sample(3))
    StochasticBeams(DIVIDED, beams=1, seed=3)


@pytest.mark.parametrize(
    "drafter", [Mixture([PromptLookup()]), Mixture([PromptLookup(), MODEL], costs=[0, 0.2])]
)
def test_a_mixture_whose_costs_are_known_is_taken(drafter: Mixture) -> None:
    SpeculativeGenerator(DIVIDED, drafter, num_draft_tokens=2)
