"""The warning about parts without effect; pyproject.toml leaves it out elsewhere."""

import warnings
from typing import Any

import pytest
import torch

from decodekit.decoding import Generator, LowConfidence, MaxNewTokens, NoEffectWarning, Sample
from decodekit.processors import XTC, Chain, MinP, PresencePenalty, RepetitionPenalty, Temperature, TopK, TopP
from decodekit.testing import ScriptedDecoder, last_token

DECODER = ScriptedDecoder(torch.eye(8).roll(1, dims=1), batch_size=2, line=last_token)


def warned(**parts: Any) -> list[str]:
    """The messages of the warnings when a generator is built."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Generator(DECODER, **parts)
    return [str(each.message) for each in caught if each.category is NoEffectWarning]


@pytest.mark.parametrize(
    ("processors", "names"),
    [
        (Temperature(2.0), "Temperature(temperature=2.0) has no effect beside Greedy()"),
        (Temperature([2.0, 3.0]), "Temperature"),
        (PresencePenalty(1.0) | Temperature(2.0), "Temperature(temperature=2.0) has"),
        (TopK(3) | TopP(0.5), "TopK(k=3, ties='keep') and TopP("),
    ],
)
def test_final_stages_beside_greedy(processors: Any, names: str) -> None:
    """One warning, with their names."""
    (message,) = warned(processors=processors)

    assert message.startswith(names)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"processors": Temperature(2.0), "sampler": Sample()},
        # A penalty weighs more after the logits were made smaller.
        {"processors": Temperature(2.0) | PresencePenalty(1.0)},
        # Written to have no effect.
        {"processors": Chain((Temperature(1.0), TopK(0), TopP(1.0), MinP(0.0)))},
        # These read the processed logits.
        {"processors": Temperature(2.0), "stop": LowConfidence(0.1) | MaxNewTokens(3)},
        {"processors": Temperature(2.0), "record_gap": True},
    ],
)
def test_what_matters_is_not_named(parts: dict[str, Any]) -> None:
    """Neither what has an effect, nor what is neutral."""
    assert [] == warned(**parts)


@pytest.mark.parametrize(
    ("parts", "num_samples", "count"),
    [
        ({}, 2, 1),
        ({}, 1, 0),
        ({"sampler": Sample(seed=0)}, 2, 0),
        # It draws random numbers.
        ({"processors": XTC(0.5, 0.1)}, 2, 0),
        ({"processors": RepetitionPenalty(torch.tensor([1.0, 3.0]))}, 2, 0),
    ],
)
def test_samples_that_are_alike(parts: dict[str, Any], num_samples: int, count: int) -> None:
    """Said where the generator is called."""
    generator = Generator(DECODER, stop=MaxNewTokens(2), **parts)
    for call in (generator, lambda *given, **named: list(generator.stream(*given, **named))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call([1], num_samples=num_samples)

        assert [(NoEffectWarning, __file__)] * count == [(each.category, each.filename) for each in caught]


def test_says_where_the_generator_was_built() -> None:
    """As warnings should."""
    with pytest.warns(NoEffectWarning) as caught:
        Generator(DECODER, processors=Temperature(2.0))

    assert __file__ == caught[0].filename
