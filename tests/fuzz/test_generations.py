"""
Random generations: a row is the row alone, a draft changes nothing, events add up, failures leave nothing.

For as long as ``--fuzz-minutes`` says; ``--fuzz-seed`` is the first seed. A finding names its seed.
"""

import random

import attrs
import pytest

from decodekit.decoding import ExactMatch

from .campaign import run_campaign
from .generation_case import Case, random_case
from .generation_relations import (
    check_interleaved,
    check_replay,
    check_rows_alone,
    check_same,
    check_streams,
    disturb,
)
from .injected_failures import fail
from .model_generations import check_model
from .outcomes import outcome_of

pytestmark = pytest.mark.campaign


def check_plain(case: Case, dice: random.Random) -> list[str]:
    """Rows alone, again, streamed, and in turns; the outcome."""
    decoder = case.decoder(len(case.prompts))
    generator = case.plain(decoder, range(len(case.prompts)))
    expected = outcome_of(case.run(generator))
    check_rows_alone(case, expected)
    check_same("second call", expected, outcome_of(case.run(generator)))
    for _ in range(2):
        done = disturb(case, generator, dice)
        check_same(f"call after {done}", expected, outcome_of(case.run(generator)))
    check_streams(case, generator, expected)
    check_interleaved(case, generator, case.plain(decoder, range(len(case.prompts))), dice)
    done = fail(without_drafter(case), decoder, None, dice)
    check_same(f"call after {done}", expected, outcome_of(case.run(generator)))
    return expected


def without_drafter(case: Case) -> Case:
    """The same case in plain decoding."""
    return attrs.evolve(case, drafting=None, verification=ExactMatch())


def check_exact_speculation(case: Case, expected: list[str], dice: random.Random) -> None:
    """Plain decoding's outcome, also the second time, and after other prompts and failures."""
    decoder, drafter = case.decoder(4), case.drafter()
    generator = case.speculative(decoder, drafter)
    check_same("speculation", expected, outcome_of(case.run(generator)))
    check_same("second speculation", expected, outcome_of(case.run(generator)))
    done = disturb(case, generator, dice)
    check_same(f"speculation after {done}", expected, outcome_of(case.run(generator)))
    done = fail(case, decoder, drafter, dice)
    check_same(f"speculation after {done}", expected, outcome_of(case.run(generator)))
    check_streams(case, generator, expected)
    check_interleaved(case, generator, case.plain(decoder, range(len(case.prompts))), dice)


def check_other_speculation(case: Case, dice: random.Random) -> None:
    """The distribution is kept, not the text: each result is one that plain decoding could give."""
    decoder, drafter = case.decoder(4), case.drafter()
    generator = case.speculative(decoder, drafter)
    check_replay(case, case.run(generator))
    disturb(case, generator, dice)
    fail(case, decoder, drafter, dice)
    result = case.run(generator)
    check_replay(case, result)


MODEL_EVERY = 25
"""One case of so many is over a model."""


def check(seed: int) -> str:
    """The relations of one case; its kind."""
    if seed % MODEL_EVERY == 0:
        return check_model(seed)
    case, dice = random_case(seed), random.Random(-seed - 1)
    expected = check_plain(case, dice)
    if case.drafting is not None:
        if isinstance(case.verification, ExactMatch):
            check_exact_speculation(case, expected, dice)
        else:
            check_other_speculation(case, dice)
    return case.kind


def test_random_generations(pytestconfig: pytest.Config) -> None:
    """Whatever parts, prompts, disturbances and failures."""
    run_campaign(pytestconfig, check)
