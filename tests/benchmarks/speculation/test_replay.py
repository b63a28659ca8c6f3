"""Speculation on recorded texts, next to speculation itself."""

import torch
from hypothesis import given, settings, strategies as st

from decodekit.benchmarks.prompts.prompt_sets import KINDS, prompts
from decodekit.benchmarks.speculation.gains import Computed, shares_table
from decodekit.benchmarks.speculation.known_rates import KnownRates
from decodekit.benchmarks.speculation.real_prompts import LONGEST, Answer, compute
from decodekit.benchmarks.speculation.replay import RecordedDraft, RecordedText, recorded_drafts, replay
from decodekit.decoding import Generator, MaxNewTokens
from decodekit.decoding.protocols import Drafter
from decodekit.speculation import PromptLookup, SpeculativeGenerator, SuffixAutomaton
from decodekit.testing import ScriptedDecoder

SECONDS = {1: 1.0, 5: 1.5, 9: 2.0}
SHAPE = {"max_length": 96, "widths": (1, 5, 9), "scored_width": 9}


def scripted(seed: int) -> ScriptedDecoder:
    """Of few tokens, so that its texts repeat themselves."""
    return ScriptedDecoder(torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)), **SHAPE)


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8), st.sampled_from([PromptLookup, SuffixAutomaton]))
def test_a_replay_takes_the_forwards_of_the_run(seed: int, k: int, drafter: type[Drafter]) -> None:
    """With a fixed draft length: as many steps, with as many draft tokens accepted."""
    prompt = [1, 2, 3]
    parts = {"stop": MaxNewTokens(40)}
    plain = Generator(scripted(seed), **parts)(prompt)
    run = SpeculativeGenerator(scripted(seed), drafter(), num_draft_tokens=k, **parts)(prompt).statistics
    text = RecordedText(tuple(prompt), tuple(plain.ids[0]))
    found = replay(k, recorded_drafts(drafter(), text, k), SECONDS)

    assert run.forwards - 1 == len(found.steps)
    assert sum(run.accepted) == sum(sum(step.accepted) for step in found.steps)
    assert found.seconds >= sum(SECONDS[1] for _ in found.steps)


def test_plain_decoding_takes_a_forward_a_token() -> None:
    """Whatever could have been drafted."""
    text = RecordedText((1, 2, 1), (2, 1, 2, 1))

    assert 3 * (1.0 + 0.5) == replay(0, recorded_drafts(PromptLookup(), text, 4), SECONDS, 0.5).seconds


def test_what_is_computed() -> None:
    """The best of all fixed lengths on a text of period two is the longest draft; the adaptive one gains."""
    answer = Answer("edits", 0.0, RecordedText((1, 2), (1, 2) * 40), 0.0)
    found = compute(answer, SECONDS, scripted(0))

    # 80 tokens: the first 64, and all.
    assert [64, 256] * 2 == [each.limit for each in found]
    for each in found:
        assert LONGEST == 1 + each.fixed.index(max(each.fixed))
        assert 1 < each.adaptive <= each.known <= max(each.fixed)


def test_shares() -> None:
    """Of the best fixed length's gain, of answers in which that is worthwhile."""
    cells = [
        Computed("chat", "lookup", 0.0, 64, 64, (1.0, best), adaptive, known)
        for best, adaptive, known in [(1.5, 1.25, 1.5), (1.5, 1.45, 1.5), (1.09, 1.0, 1.0)]
    ]

    assert [True, True, False] == [each.is_worthwhile for each in cells]
    assert 0.5 == cells[0].share(1.25)
    assert ((64, "80%", 2, 50.0, 100.0),) == tuple(shares_table(cells).rows)


def test_known_rates_are_those_of_the_answer() -> None:
    """Drafts that are never right are not made, those that always are are as long as a width scores."""
    always, never = (RecordedDraft(8, agreed, 3, 0.0, 0.0) for agreed in (8, 0))

    assert [8] == KnownRates.of([always] * 50, SECONDS, 0.1).weigh([3])
    assert [0] == KnownRates.of([never] * 50, SECONDS, 0.1).weigh([3])


def test_there_are_forty_prompts() -> None:
    """Eight of each kind, all different."""
    found = prompts()

    assert 40 == len({text for _, text in found})
    assert dict.fromkeys(KINDS, 8) == {kind: [each for each, _ in found].count(kind) for kind in KINDS}
