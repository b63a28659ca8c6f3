"""What parts offer, by the protocols that declare it."""

import inspect
from typing import Any

import pytest
import torch

from decodekit.decoding import (
    AdaptiveP,
    EndOfSequence,
    ExactMatch,
    Greedy,
    MaxNewTokens,
    Mirostat,
    NotBefore,
    Sample,
    StopStrings,
    StopWhen,
    has_short_cuts,
    optional_protocols,
)
from decodekit.decoding.optional_protocols import offers_short_cuts, stages_of
from decodekit.decoding.sampling import short_cuts
from decodekit.decoding.sampling.greedy_short_cuts import GreedyShortCuts
from decodekit.decoding.sampling.sample_short_cuts import SampleShortCuts
from decodekit.processors import Chain, TopK, TopP
from decodekit.speculation import (
    AdaptiveLength,
    BlockVerification,
    ConfidenceLength,
    DraftModel,
    DraftTree,
    Mixture,
    PromptLookup,
    RejectionSampling,
    SuffixAutomaton,
)
from decodekit.speculation.verification.independent_noise import IndependentNoise, IndependentNoiseShortCuts
from decodekit.streaming import Callback, FanOut
from decodekit.testing import ScriptedDecoder

NAMES = {
    name
    for module in (optional_protocols, short_cuts)
    for kind in vars(module).values()
    if inspect.isclass(kind) and kind.__module__.startswith(module.__name__)
    if getattr(kind, "_is_protocol", False)
    for name in {*vars(kind), *kind.__annotations__}
    if not name.startswith("_")
}

DECODER = ScriptedDecoder(torch.zeros(1, 5))
DECLARES = "keeps_argmax shift_invariant local device_safe row_independent"


class Letters:
    """A tokenizer."""

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return "a" * len(token_ids)

    def convert_ids_to_tokens(self, index: int) -> str:
        return "a"


@pytest.mark.parametrize(
    ("part", "offered"),
    [
        (TopK(5), DECLARES),
        (TopP(0.9), DECLARES),
        (Chain(), DECLARES + " processors from_row"),
        (Greedy(), "takes_argmax top_choices gap row_independent"),
        (Sample(seed=0), "seed draws_softmax top_choices gap row_independent"),
        (IndependentNoise(Sample(seed=0), torch.zeros(1)), ""),
        (GreedyShortCuts(Greedy()), "among"),
        (SampleShortCuts(Sample(seed=0)), "sample among from_few"),
        (IndependentNoiseShortCuts(IndependentNoise(Sample(seed=0), torch.zeros(1))), "sample among"),
        (Mirostat(), "seed is_stateful begin"),
        (AdaptiveP(0.5), "seed is_stateful begin"),
        (EndOfSequence(2), "by_token begin"),
        (MaxNewTokens(2), "by_token begin check_rows most_new_tokens"),
        (MaxNewTokens(2) | EndOfSequence(2), "by_token conditions begin most_new_tokens"),
        (NotBefore(2, EndOfSequence(2)), "conditions begin check_rows"),
        (StopStrings("a", Letters()), "by_token skip_special_tokens begin"),
        (StopWhen(lambda history: False), "begin"),
        (ExactMatch(), "takes_trees"),
        (RejectionSampling(), "compares_scores reads_target_tokens"),
        (BlockVerification(), "compares_scores reads_target_tokens"),
        (AdaptiveLength(), "decides_by_time length_beside prepare wants_evidence weigh"),
        (ConfidenceLength(), "goes_on"),
        (PromptLookup(), "evidence foresee"),
        (DraftModel(DECODER), "catch_up check_target propose_while"),
        (DraftTree(DECODER), "catch_up check_target propose_while tree_nodes"),
        (SuffixAutomaton(), "evidence foresee"),
        (Mixture([PromptLookup()]), "check_target decides_by_time tree_nodes"),
        (FanOut(Callback(print)), "begin fail"),
    ],
)
def test_what_our_own_parts_offer(part: object, offered: str) -> None:
    """All of it and nothing else: a name that is misspelt, here or in a protocol, is missed."""
    assert set(offered.split()) == {name for name in NAMES if hasattr(part, name)}


class TestShortCuts:
    def test_are_those_of_the_very_class(self) -> None:
        """Not of a subclass, which may change what a call says, unless it declares its own."""

        class Changed(MaxNewTokens):
            pass

        @has_short_cuts
        class Declared(MaxNewTokens):
            pass

        found = [offers_short_cuts(kind(3)) for kind in (MaxNewTokens, Changed, Declared)]

        assert [True, False, True] == found
        assert not offers_short_cuts(lambda scores, history: None)

    @pytest.mark.parametrize(
        "part",
        [
            *(EndOfSequence(2), MaxNewTokens(2)),
            *(MaxNewTokens(2) | EndOfSequence(2), MaxNewTokens(2) & EndOfSequence(2)),
        ],
    )
    def test_are_declared(self, part: object) -> None:
        """By every stop condition of ours that has one."""
        assert offers_short_cuts(part)


def test_the_stages_of_a_chain() -> None:
    """One by one; a function is its own chain, and None is none; anything with processors is taken apart."""

    class Theirs:
        processors = (abs, len)

    assert () == stages_of(None) == stages_of(Chain())
    assert (abs,) == stages_of(abs)  # type: ignore[arg-type]
    assert (abs, len) == stages_of(Theirs())  # type: ignore[arg-type]
