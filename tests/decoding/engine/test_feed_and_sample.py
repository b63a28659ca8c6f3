"""A decoder that chooses says what the host would."""

from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import (
    EndOfSequence,
    ExactMatch,
    Generation,
    Generator,
    Greedy,
    History,
    Logprobs,
    LowConfidence,
    MaxNewTokens,
    Sample,
)
from decodekit.decoding.protocols import Drafter, Processor, Sampler
from decodekit.processors import RepetitionPenalty, SuppressTokens, Temperature, TopK
from decodekit.speculation import DraftModel, DraftTree, PromptLookup, RejectionSampling, Tree
from decodekit.testing import ScriptedDecoder

from .sampling_decoder import SamplingDecoder

VOCAB = 9
TABLE = 2 * torch.randn(97, VOCAB, generator=torch.Generator().manual_seed(3))
NEAR = TABLE + 0.5 * torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(4))

CHAIN = RepetitionPenalty(1.3) | Temperature(0.8) | TopK(6)
SAMPLERS: dict[str, Sampler] = {"greedy": Greedy(), "sample": Sample(seed=5)}

every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


@attrs.frozen(eq=False)
class Counted:
    """A processor that counts its calls, by the rows that each has, and changes nothing."""

    batches: list[int] = attrs.field(factory=list)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Count."""
        self.batches.append(len(logits))
        return logits


def drafters(sampler: Sampler) -> dict[str, Drafter | None]:
    """None, one that looks up, one that draws, and one whose decoder chooses."""
    return {
        "plain": None,
        "lookup": PromptLookup(),
        "model": DraftModel(ScriptedDecoder(NEAR, batch_size=3)),
        "model that chooses": DraftModel(
            SamplingDecoder(NEAR, batch_size=4, max_length=40, processors=CHAIN, sampler=sampler)
        ),
    }


def both(
    prompts: list[list[int]], sampler: Sampler, drafter: str = "plain", **parts: Any
) -> tuple[Generation, Generation, SamplingDecoder]:
    """The same run with the host choosing, and with the decoder."""
    # It has rows that the run does not.
    decoder = SamplingDecoder(TABLE, batch_size=3, processors=CHAIN, sampler=sampler)
    runs = [
        Generator(
            target,
            processors=CHAIN,
            sampler=sampler,
            drafter=drafters(sampler)[drafter],
            **{"stop": MaxNewTokens(30), **parts},
        )(prompts, logprobs=Logprobs(top=2, stage="processed"))
        for target in (ScriptedDecoder(TABLE, batch_size=3), decoder)
    ]
    return runs[0], runs[1], decoder


PROMPTS = [[1, 2, 3], [4] * 25]


class TestGeneration:
    def test_one_program_feeds_all_where_drafts_need_the_host(self) -> None:
        """Tokens of the program that samples would be fed again at the first draft."""
        host, device, _ = both(
            PROMPTS, SAMPLERS["sample"], "lookup", exact_width=True, verification=RejectionSampling()
        )

        assert host.statistics.drafted
        assert host.ids == device.ids
        assert host.statistics.tokens_fed == device.statistics.tokens_fed

    @every_sampler
    @pytest.mark.parametrize("exact_width", [False, True])
    @pytest.mark.parametrize("drafter", drafters(Greedy()))
    def test_says_what_the_host_says(self, sampler: Sampler, drafter: str, exact_width: bool) -> None:
        """Ragged rows, prompts in chunks, draft tokens, columns that catch up; ids and log-probabilities."""
        host, device, decoder = both(PROMPTS, sampler, drafter, exact_width=exact_width)

        assert host.ids == device.ids
        assert host.logprobs == device.logprobs
        assert host.finishes == device.finishes
        assert decoder.sampled > 0
        same = ("tokens", "steps", "drafted", "accepted_lengths")
        assert [getattr(host.statistics, name) for name in same] == [
            getattr(device.statistics, name) for name in same
        ]

    @given(
        rows=st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), min_size=1, max_size=3),
        drafter=st.sampled_from(sorted(drafters(Greedy()))),
        exact_width=st.booleans(),
    )
    def test_says_it_of_any_prompts(self, rows: list[list[int]], drafter: str, exact_width: bool) -> None:
        """Whatever columns a forward has, each is chosen in with the tokens before it."""
        host, device, _ = both(rows, SAMPLERS["sample"], drafter, exact_width=exact_width)

        assert host.ids == device.ids

    def test_leaves_the_host_nothing_to_do(self) -> None:
        """The chain does not run but for the prompt, whose wide forward does not choose."""
        for wide, calls in ((False, 1), (True, 0)):
            counted = Counted()
            decoder = SamplingDecoder(TABLE, batch_size=2, processors=counted, wide=wide)
            stop = MaxNewTokens(12)
            Generator(decoder, processors=counted, sampler=decoder.sampler, stop=stop)([[1] * 12] * 2)

            # The decoder itself takes row by row.
            assert calls == counted.batches.count(2)
            assert 2 * (12 - calls) == counted.batches.count(1)

    def test_samples_with_another_chain_on_the_host(self) -> None:
        """The decoder samples only with the chain that it was compiled with."""
        decoder = SamplingDecoder(TABLE, processors=CHAIN)
        parts: dict[str, Any] = {"processors": Temperature(0.5), "stop": MaxNewTokens(10)}

        found = Generator(decoder, sampler=decoder.sampler, **parts)([[1, 2]]).ids

        assert 0 == decoder.sampled
        assert Generator(ScriptedDecoder(TABLE), **parts)([[1, 2]]).ids == found

    def test_scores_are_there_for_who_reads_them(self) -> None:
        """A stop that looks at them stops where it would."""
        stop = LowConfidence(0.3) | EndOfSequence(2) | MaxNewTokens(30)
        host, device, _ = both(PROMPTS, SAMPLERS["sample"], stop=stop)

        assert host.ids == device.ids
        assert host.finishes == device.finishes
        assert "low_confidence" in {finish.reason for finish in host.finishes if finish}

    def test_gaps_are_recorded(self) -> None:
        """From the scores that the host makes."""
        host, device, _ = both(PROMPTS, SAMPLERS["sample"], record_gap=True)

        assert host.statistics.smallest_gap == device.statistics.smallest_gap is not None

    def test_names_who_left_no_token(self) -> None:
        """As ever."""
        empty = SuppressTokens(range(VOCAB))
        decoder = SamplingDecoder(TABLE, processors=empty)

        (finish,) = Generator(decoder, processors=empty)([[1, 2]]).finishes

        assert finish is not None
        assert ("no_token_left", repr(empty)) == (finish.reason, finish.matched)

    def test_verifications_that_compare_scores_sample_on_the_host(self) -> None:
        """Without a reader the decoder samples nothing; without draft tokens it does."""
        for drafter, chosen in (("model", 0), ("plain", 29)):
            host, device, decoder = both(
                PROMPTS, SAMPLERS["sample"], drafter, verification=RejectionSampling()
            )

            assert host.ids == device.ids
            assert chosen == decoder.sampled

    def test_trees_are_chosen_from_on_the_host(self) -> None:
        """Their columns lie on many paths."""
        sampler = SAMPLERS["sample"]
        parts: dict[str, Any] = {"batch_size": 2, "tree_widths": (8,)}
        decoder = SamplingDecoder(TABLE, processors=CHAIN, sampler=sampler, **parts)
        texts = [
            Generator(
                target,
                processors=CHAIN,
                sampler=sampler,
                drafter=DraftTree(ScriptedDecoder(NEAR, **parts), Tree.comb(2, 2)),
                stop=MaxNewTokens(20),
            )(PROMPTS).ids
            for target in (ScriptedDecoder(TABLE, **parts), decoder)
        ]

        assert texts[0] == texts[1]


class TestExplain:
    def test_a_decoder_that_does_not_sample(self) -> None:
        """Everything is the host's."""
        placement = Generator(ScriptedDecoder(TABLE), processors=CHAIN).explain()

        assert not placement.on_device
        assert ["host"] * 4 == [place.where for place in placement.places]
        assert [*map(repr, CHAIN.processors), "Greedy()"] == [place.part for place in placement.places]

    def test_what_else_reads_the_scores(self) -> None:
        """Parts of the generator for which the chain runs on the host as well."""
        sample = Sample(seed=0)
        decoder = SamplingDecoder(TABLE, sampler=sample)
        drafter = PromptLookup()

        plain = Generator(decoder, sampler=sample).explain()
        gap = Generator(decoder, sampler=sample, record_gap=True).explain()
        compared = Generator(
            decoder, sampler=sample, drafter=drafter, verification=RejectionSampling()
        ).explain()
        agreed = Generator(decoder, sampler=sample, drafter=drafter, verification=ExactMatch()).explain()

        assert ("a note",) == plain.notes == agreed.notes
        assert ("a note", "'record_gap' reads the scores of every token") == gap.notes
        assert "RejectionSampling() reads the scores, not the sampled tokens" in compared.notes[1]

    def test_prints_a_table(self) -> None:
        """A line a part, then the notes."""
        decoder = SamplingDecoder(TABLE)

        assert ("part      runs on  why\nGreedy()  device   as scripted\nnote: a note") == str(
            Generator(decoder, sampler=decoder.sampler).explain()
        )


def test_a_choice_of_another_shape_is_refused() -> None:
    """A decoder that chooses too little would shift everything that follows."""

    class Short(SamplingDecoder):
        def forward_and_sample(self, ids: Tensor, cache_pos: Tensor, history: History) -> Any:
            chosen, scores = super().forward_and_sample(ids, cache_pos, history)
            return chosen[:, :0], scores

    decoder = Short(TABLE)
    with pytest.raises(ValueError, match=r"forward must return ids of the shape \[1, 5\]: got \[1, 0\]"):
        Generator(decoder, sampler=decoder.sampler)([[1, 2]])


def test_a_processor_alone_is_a_chain() -> None:
    """Not only what has stages."""
    one: Processor = Temperature(0.7)
    sampler = Sample(seed=2)
    decoder = SamplingDecoder(TABLE, processors=one, sampler=sampler)
    result = Generator(decoder, processors=one, sampler=sampler, stop=MaxNewTokens(9))([[1, 2]])

    assert decoder.sampled > 0
    assert (
        Generator(ScriptedDecoder(TABLE), processors=one, sampler=sampler, stop=MaxNewTokens(9))([[1, 2]]).ids
        == result.ids
    )
