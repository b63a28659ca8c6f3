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
from decodekit.decoding.sampling import candidates, few_tokens
from decodekit.processors import Chain, MinP, NoRepeatNgram, RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import (
    AdaptiveLength,
    BlockVerification,
    DraftModel,
    DraftTree,
    Mixture,
    PromptLookup,
    RejectionSampling,
    SuffixAutomaton,
)
from decodekit.speculation.verification.distributions import IndependentNoise
from decodekit.streaming import Callback, FanOut
from decodekit.testing import ScriptedDecoder

NAMES = {
    name
    for module in (optional_protocols, candidates, few_tokens)
    for kind in vars(module).values()
    if inspect.isclass(kind) and kind.__module__ == module.__name__ and getattr(kind, "_is_protocol", False)
    for name in {*vars(kind), *kind.__annotations__}
    if not name.startswith("_")
}

DECODER = ScriptedDecoder(torch.zeros(1, 5))
DECLARES = "keeps_argmax shift_invariant local device_safe "


class Letters:
    """A tokenizer."""

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return "a" * len(token_ids)

    def convert_ids_to_tokens(self, index: int) -> str:
        return "a"


@pytest.mark.parametrize(
    ("part", "offered"),
    [
        (TopK(5), DECLARES + "narrow among takes_few of_few to_few"),
        (TopP(0.9), DECLARES + "narrow among takes_few of_few"),
        (MinP(0.1), DECLARES + "narrow"),
        (Temperature(0.5), DECLARES + "into takes_few of_few at_most"),
        (RepetitionPenalty(1.1), DECLARES + "into takes_few of_few at_most"),
        (NoRepeatNgram(2), DECLARES + "into"),
        (Chain(), DECLARES + "processors"),
        (Greedy(), "takes_argmax top_choices gap among"),
        (Sample(), "seed draws_softmax top_choices gap among from_few"),
        (IndependentNoise(Sample(), torch.zeros(1)), "among"),
        (Mirostat(), "seed is_stateful begin"),
        (AdaptiveP(0.5), "seed is_stateful begin"),
        (EndOfSequence(2), "by_token begin"),
        (MaxNewTokens(2) | EndOfSequence(2), "by_token conditions begin"),
        (NotBefore(2, EndOfSequence(2)), "conditions begin"),
        (StopStrings("a", Letters()), "skip_special_tokens begin"),
        (StopWhen(lambda history: False), "begin"),
        (ExactMatch(), "takes_trees"),
        (RejectionSampling(), "compares_scores reads_target_tokens"),
        (BlockVerification(), "compares_scores reads_target_tokens"),
        (AdaptiveLength(), "prepare"),
        (PromptLookup(), ""),
        (DraftModel(DECODER), "check_target"),
        (DraftTree(DECODER), "check_target tree_nodes"),
        (SuffixAutomaton(), "evidence"),
        (Mixture([PromptLookup()]), "check_target tree_nodes"),
        (FanOut(Callback(print)), "begin fail"),
    ],
)
def test_what_our_own_parts_offer(part: object, offered: str) -> None:
    """All of it and nothing else: a name that is misspelt, here or in a protocol, is missed."""
    assert set(offered.split()) == {name for name in NAMES if hasattr(part, name)}


class TestShortCuts:
    def test_are_those_of_the_very_class(self) -> None:
        """Not of a subclass, which may change what a call says, unless it declares its own."""

        class Changed(TopK):
            pass

        @has_short_cuts
        class Declared(TopK):
            pass

        assert [True, False, True] == [offers_short_cuts(kind(3)) for kind in (TopK, Changed, Declared)]
        assert not offers_short_cuts(lambda logits, history: logits)

    @pytest.mark.parametrize(
        "part",
        [
            *(TopK(5), TopP(0.9), MinP(0.1), Temperature(0.5), RepetitionPenalty(1.1), NoRepeatNgram(2)),
            *(
                Greedy(),
                Sample(),
                IndependentNoise(Sample(), torch.zeros(1)),
                EndOfSequence(2),
                MaxNewTokens(2),
            ),
            *(MaxNewTokens(2) | EndOfSequence(2), MaxNewTokens(2) & EndOfSequence(2)),
        ],
    )
    def test_are_declared(self, part: object) -> None:
        """By every class of ours that has some."""
        assert offers_short_cuts(part)


def test_the_stages_of_a_chain() -> None:
    """One by one; a function is its own chain, and None is none; anything with processors is taken apart."""

    class Theirs:
        processors = (abs, len)

    assert () == stages_of(None) == stages_of(Chain())
    assert (abs,) == stages_of(abs)  # type: ignore[arg-type]
    assert (abs, len) == stages_of(Theirs())  # type: ignore[arg-type]
