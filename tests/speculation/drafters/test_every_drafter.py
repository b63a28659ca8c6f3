"""
A thousand seeds: whatever runs ahead, the text is plain decoding's.

Each seed is a table, a ragged batch of one to four prompts, a chain, a sampler and a stop; it
is decoded once without a draft, and once with every drafter and every shape of a tree.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.decoding import (
    EndOfSequence,
    Generator,
    Greedy,
    MaxNewTokens,
    Sample,
    StopStrings,
    StopTokens,
)
from decodekit.decoding.protocols import Drafter, Processor, StopCondition
from decodekit.processors import (
    DRY,
    XTC,
    FrequencyPenalty,
    Grammar,
    LogitBias,
    MinNewTokens,
    MinP,
    NoRepeatNgram,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
)
from decodekit.speculation import (
    AdaptiveLength,
    CommonTokens,
    DraftModel,
    DraftTree,
    ForcedTokens,
    Mixture,
    PromptLookup,
    RetokenizedDraft,
    SpeculativeGenerator,
    SuffixAutomaton,
    Tree,
)
from decodekit.testing import ScriptedDecoder

from ...processors.grammar.languages import Brackets
from .tokenizers_for_drafts import tokenizer

VOCAB, ROWS = 12, 4
SHAPE: dict[str, Any] = {"max_length": 30, "widths": (1, 5, 16), "scored_width": 5, "tree_widths": (8, 20)}
BRACKETS = Grammar(Brackets(3))


def draft_of(table: Tensor, seed: int, **other: Any) -> ScriptedDecoder:
    """A draft that agrees with the target now and then."""
    off = torch.randn(table.shape, generator=torch.Generator().manual_seed(seed + 10_000))
    return ScriptedDecoder(table + 0.6 * off, ROWS, **{**SHAPE, **other})


DRAFTERS: dict[str, Callable[[Tensor, int], Drafter]] = {
    "model": lambda table, seed: DraftModel(draft_of(table, seed)),
    "short model": lambda table, seed: DraftModel(draft_of(table, seed, max_length=16)),
    "lookup": lambda table, seed: PromptLookup(),
    "suffixes": lambda table, seed: SuffixAutomaton(),
    "corpus": lambda table, seed: SuffixAutomaton([[random.Random(i).randrange(VOCAB) for i in range(90)]]),
    "mixture": lambda table, seed: Mixture([PromptLookup(2), DraftModel(draft_of(table, seed))]),
    "mixed trees": lambda table, seed: Mixture(
        [SuffixAutomaton(), DraftTree(draft_of(table, seed), Tree.comb(2, 2))]
    ),
    "forced tree": lambda table, seed: ForcedTokens(
        BRACKETS, then=DraftTree(draft_of(table, seed), Tree.of_children(2, 2))
    ),
    "forced": lambda table, seed: ForcedTokens(BRACKETS, then=PromptLookup()),
    "comb": lambda table, seed: DraftTree(draft_of(table, seed), Tree.comb(3, 2, 2, 1)),
    "bush": lambda table, seed: DraftTree(draft_of(table, seed), Tree.of_children(2, 2, 2)),
    "fan": lambda table, seed: DraftTree(draft_of(table, seed), Tree.of_children(VOCAB)),
}


def chain(seed: int, rows: int) -> Processor | None:
    """Chains with and without history, with their own noise, and with per-row parameters."""
    heat = Temperature(0.3 + 0.3 * (seed % 5))
    chains: list[Processor | None] = [
        None,
        heat | TopK(5) | TopP(0.9),
        RepetitionPenalty(1.3) | heat | MinP(0.05),
        NoRepeatNgram(2) | FrequencyPenalty(0.4) | heat,
        SuppressTokens([3]) | LogitBias({1: 1.5, 2: -2.0}) | MinNewTokens(4, [0]) | heat,
        BRACKETS | heat,
        heat | XTC(0.5, 0.1),
        DRY(0.8, allowed_length=1) | Temperature([0.5 + 0.3 * row for row in range(rows)]),
    ]
    return chains[seed % len(chains)]


class Letters:
    """A tokenizer: a token is one or two of three letters."""

    pieces = ("a", "b", "c", "aa", "ab", "ac", "ba", "bb", "bc", "ca", "cb", "cc")

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return "".join(self.pieces[i] for i in token_ids)

    def convert_ids_to_tokens(self, index: int) -> str:
        return self.pieces[index]


def stop(seed: int) -> StopCondition:
    """Stops in the middle of a step's tokens, and the last position."""
    return [
        MaxNewTokens(7),
        EndOfSequence(3) | MaxNewTokens(9),
        StopStrings(["abba", "cab", "bbb"], Letters()) | MaxNewTokens(8),
        MaxNewTokens(99),
        StopTokens([4, 9]) | MaxNewTokens(8),
    ][seed // 8 % 5]


@pytest.mark.mostly_slow(every=40)
@pytest.mark.parametrize(
    "block", [*range(20), *(pytest.param(block, marks=pytest.mark.campaign) for block in range(20, 40))]
)
def test_of_a_thousand_seeds(block: int) -> None:
    """The whole result equals plain decoding; the second half is a campaign."""
    for seed in range(25 * block, 25 * block + 25):
        dice = random.Random(seed)
        rows = 1 + seed % ROWS
        table = 1.5 * torch.randn(37, VOCAB, generator=torch.Generator().manual_seed(seed))
        prompts = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 24))] for _ in range(rows)]
        parts: dict[str, Any] = {
            "processors": chain(seed, rows),
            "sampler": Greedy() if seed % 3 == 0 else Sample(seed),
            "stop": stop(seed),
        }
        random_streams = [dice.randrange(100) for _ in range(rows)]
        target = ScriptedDecoder(table, ROWS, **SHAPE)
        plain = Generator(target, **parts)(prompts, random_streams)
        length = AdaptiveLength(4) if seed % 4 == 0 else dice.randint(1, 4)
        for name, make in DRAFTERS.items():
            fast = SpeculativeGenerator(target, make(table, seed), num_draft_tokens=length, **parts)
            result = fast(prompts, random_streams)

            assert (plain.ids, plain.finishes) == (result.ids, result.finishes), (seed, name)


@pytest.mark.mostly_slow(every=20)
@pytest.mark.parametrize("block", range(20))
def test_of_a_thousand_seeds_with_another_vocabulary(block: int) -> None:
    """Drafters of another vocabulary, by common tokens or by text."""
    own, other = tokenizer("bytes"), tokenizer(("bytes-few", "pieces-few")[block % 2])
    rng = torch.Generator().manual_seed(block)
    draft = ScriptedDecoder(4 * torch.randn(41, len(other), generator=rng), ROWS, **SHAPE)
    drafters = [
        CommonTokens(draft, other, own, len(own)),
        RetokenizedDraft(draft, other, own),
    ]
    for seed in range(50 * block, 50 * block + 50):
        dice = random.Random(seed)
        rows = 1 + seed % ROWS
        table = 4 * torch.randn(41, len(own), generator=torch.Generator().manual_seed(seed))
        prompts = [[dice.randrange(len(own)) for _ in range(dice.randint(1, 30))] for _ in range(rows)]
        parts: dict[str, Any] = {
            "processors": (None, Temperature(0.7) | TopP(0.9), RepetitionPenalty(1.3))[seed % 3],
            "sampler": Greedy() if seed % 4 == 0 else Sample(seed),
            "stop": MaxNewTokens(5 if seed % 5 else 99),
        }
        target = ScriptedDecoder(table, ROWS, **SHAPE)
        plain = Generator(target, **parts)(prompts)
        fast = SpeculativeGenerator(target, drafters[seed % 2], num_draft_tokens=dice.randint(1, 4), **parts)
        result = fast(prompts)

        assert (plain.ids, plain.finishes) == (result.ids, result.finishes), seed
