"""Log-probabilities of several tokens per step equal those of one at a time."""

import random
from typing import Any

import pytest
import torch

from decodekit.decoding import (
    EndOfSequence,
    Generator,
    Greedy,
    Logprobs,
    MaxNewTokens,
    Sample,
    StopTokens,
)
from decodekit.decoding.protocols import Drafter, Verification
from decodekit.processors import NoRepeatNgram, RepetitionPenalty, Temperature, TopK
from decodekit.speculation import (
    BlockVerification,
    DraftModel,
    DraftTree,
    PromptLookup,
    RejectionSampling,
    SpeculativeGenerator,
    Tree,
)
from decodekit.testing import ScriptedDecoder

from .worlds import NoneAfter

VOCAB, ROWS = 9, 3
SHAPE: dict[str, Any] = {"max_length": 40, "widths": (1, 5, 16), "scored_width": 5, "tree_widths": (16,)}


def scripted(seed: int, off: float = 0.0) -> ScriptedDecoder:
    """A decoder, or with *off* a draft that agrees with it now and then."""
    table = 1.5 * torch.randn(37, VOCAB, generator=torch.Generator().manual_seed(seed))
    table += off * torch.randn(37, VOCAB, generator=torch.Generator().manual_seed(seed + 1))
    return ScriptedDecoder(table, ROWS, **SHAPE)


def drafter(kind: str, seed: int) -> Drafter:
    """A chain, a prompt lookup or a tree."""
    draft = scripted(seed, 0.5)
    return {
        "chain": DraftModel(draft),
        "lookup": PromptLookup(),
        "tree": DraftTree(draft, Tree((-1, 0, -1, 2, 2, 4))),  # the second branch is the longer
    }[kind]


def prompts_of(seed: int) -> list[list[int]]:
    """Three ragged ones."""
    dice = random.Random(seed)
    return [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 25))] for _ in range(ROWS)]


CHAINS = [
    RepetitionPenalty(1.3) | Temperature(0.8) | TopK(6),
    Temperature(0.7),
    TopK(4) | NoRepeatNgram(3) | NoneAfter(),
]


@pytest.mark.mostly_slow(every=3)
@pytest.mark.parametrize("kind", ["chain", "lookup", "tree"])
def test_those_of_plain_decoding(kind: str) -> None:
    """Bit for bit, at every stage, in ragged batches, for any stop anywhere in a step's tokens."""
    accepted = 0
    for seed in range(36):
        chain = CHAINS[seed % 3]
        stages = ["raw", "processed", *range(len(getattr(chain, "processors", [chain])))]
        request = Logprobs(seed % 4, stages[seed % len(stages)])
        parts: dict[str, Any] = {
            "processors": chain,
            "sampler": Greedy() if seed % 2 else Sample(seed),
            "stop": [MaxNewTokens([3, 11, 20]), EndOfSequence(0) | MaxNewTokens(25), StopTokens([3, 4])][
                seed // 3 % 3
            ],
        }
        plain = Generator(scripted(seed), **parts)(prompts_of(seed), logprobs=request)
        generate = SpeculativeGenerator(scripted(seed), drafter(kind, seed), num_draft_tokens=3, **parts)
        fast = generate(prompts_of(seed), logprobs=request)
        accepted += sum(fast.statistics.accepted)

        assert plain.ids == fast.ids
        assert plain.logprobs is not None
        assert plain.logprobs == fast.logprobs, (seed, request)
        assert fast.ids == [[one.id for one in row] for row in fast.logprobs]
        for event in generate.stream(prompts_of(seed), logprobs=request):
            assert event.ids == tuple(one.id for one in event.logprobs or ())
    assert accepted > 30


@pytest.mark.parametrize(
    "verification", [RejectionSampling(), BlockVerification()], ids=["rejection", "block"]
)
@pytest.mark.parametrize("stage", ["raw", "processed"])
def test_those_of_the_sequence(verification: Verification, stage: str) -> None:
    """Where the text differs from plain decoding, each token has the target's log-probability."""
    accepted = 0
    for seed in range(20):
        generate = SpeculativeGenerator(
            scripted(seed),
            DraftModel(scripted(seed, 0.5)),
            num_draft_tokens=3,
            processors=Temperature(0.8) | TopK(6),
            sampler=Sample(seed),
            stop=EndOfSequence(0) | MaxNewTokens(12),
            verification=verification,
        )
        prompts, request = prompts_of(seed), Logprobs(3, stage)
        result = generate(prompts, logprobs=request)
        again = generate.prompt_logprobs(result.sequences, logprobs=request)
        accepted += sum(result.statistics.accepted)

        assert result.logprobs == [row[len(prompt) :] for row, prompt in zip(again, prompts, strict=True)]
    assert accepted > 30
