"""Steps of several tokens give the same results as one token per step."""

import contextlib
import random
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.decoding import (
    Draft,
    EndOfSequence,
    Finish,
    Generator,
    Greedy,
    History,
    MaxNewTokens,
    Sample,
    StopTokens,
)
from decodekit.decoding.protocols import Drafter, SamplesTokens
from decodekit.decoding.scores import Scores
from decodekit.decoding.stopping.composition import Stop
from decodekit.processors import RepetitionPenalty, Temperature, TopK
from decodekit.speculation import DraftModel, DraftTree, PromptLookup, SpeculativeGenerator, Tree
from decodekit.testing import ScriptedDecoder

VOCAB, ROWS = 9, 3
SHAPE: dict[str, Any] = {"max_length": 40, "widths": (1, 5, 16), "scored_width": 5, "tree_widths": (16,)}


def scripted(seed: int, off: float = 0.0, **other: Any) -> ScriptedDecoder:
    """A decoder, or with *off* a draft that agrees with it now and then."""
    table = 1.5 * torch.randn(37, VOCAB, generator=torch.Generator().manual_seed(seed))
    table += off * torch.randn(37, VOCAB, generator=torch.Generator().manual_seed(seed + 1))
    return ScriptedDecoder(table, ROWS, **{**SHAPE, **other})


def drafters(seed: int) -> list[Drafter]:
    """A chain, a prompt lookup and a tree."""
    return [
        DraftModel(scripted(seed, 0.5)),
        PromptLookup(),
        DraftTree(scripted(seed, 0.5), Tree.of_children(2, 2, 1)),
    ]


@attrs.define(eq=False)
class LogProbabilities(Stop):
    """Never ends a row; records the log-probability of each token, by row and position."""

    finishes: ClassVar[tuple[Finish, ...]] = ()
    noted: dict[tuple[int, int], tuple[int, float]] = attrs.field(factory=dict)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        logprobs = scores.logits.double().log_softmax(dim=-1)
        for row, ends in enumerate(history.length.tolist()):
            for column, end in enumerate(ends):
                # After a row's last token the column is repeated.
                if column == 0 or end > ends[column - 1]:
                    token = int(history.ids[row, 0, end - 1])
                    # An ended row's last token is repeated, with garbage.
                    self.noted.setdefault((row, end - 1), (token, float(logprobs[row, column, token])))
        return torch.zeros_like(history.length)


def kept(notes: LogProbabilities, prompts: list[list[int]], ids: list[list[int]]) -> Any:
    """Records of the kept tokens."""
    return [
        [notes.noted[row, len(prompt) + i] for i in range(len(new))]
        for row, (prompt, new) in enumerate(zip(prompts, ids, strict=True))
    ]


@pytest.mark.parametrize("kind", range(3))
def test_log_probabilities(kind: int) -> None:
    """Bit for bit those of token-by-token decoding, wherever a stop cuts a step's tokens."""
    accepted = 0
    for seed in range(30):
        dice = random.Random(seed)
        prompts = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 20))] for _ in range(ROWS)]
        outcomes = []
        for drafter in (None, drafters(seed)[kind]):
            notes = LogProbabilities()
            generator = Generator(
                scripted(seed),
                processors=RepetitionPenalty(1.2) | Temperature(0.7) | TopK(6),
                sampler=Greedy() if seed % 3 == 0 else Sample(seed),
                stop=notes | EndOfSequence(0) | StopTokens([4]) | MaxNewTokens(13),
                drafter=drafter,
                num_draft_tokens=3,
            )
            result = generator(prompts)
            accepted += sum(result.statistics.accepted)
            outcomes.append((result.ids, result.finishes, kept(notes, prompts, result.ids)))

        assert outcomes[0] == outcomes[1], seed
    assert accepted > 10


@pytest.mark.parametrize("kind", range(3))
def test_near_the_end_of_the_cache_the_draft_shrinks(kind: int) -> None:
    """From every distance to the last position: the text reaches it, and no draft exceeds it."""
    for length in range(1, 13):
        prompts = [[1] * length, [2, 3]]
        plain = Generator(scripted(4, max_length=16, widths=(1, 5)), stop=MaxNewTokens(99))(prompts)
        fast = SpeculativeGenerator(
            scripted(4, max_length=16, widths=(1, 5)), drafters(4)[kind], stop=MaxNewTokens(99)
        )(prompts)

        assert (plain.ids, plain.finishes) == (fast.ids, fast.finishes)
        assert ["max_length"] * 2 == [finish.reason for finish in fast.finishes if finish]


@attrs.define(eq=False)
class Failing:
    """*drafter*, raising on the *at*-th call."""

    drafter: Drafter
    at: int
    calls: int = 0

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        self.calls += 1
        draft = self.drafter.propose(history, budget, sample)
        if self.calls == self.at:
            raise RuntimeError("broken")
        return draft


@pytest.mark.parametrize("kind", range(3))
def test_an_exception_inside_a_drafter_leaves_the_generator_usable(kind: int) -> None:
    """It reaches the caller; the text streamed before it and the next call are correct."""
    parts: dict[str, Any] = {"sampler": Sample(1), "stop": MaxNewTokens(20)}
    prompts = [[1, 2, 1, 2, 1], [3]]
    expected = Generator(scripted(6), **parts)(prompts).ids
    for at in range(1, 4):
        failing = Failing(drafters(6)[kind], at)
        fast = SpeculativeGenerator(scripted(6), failing, num_draft_tokens=3, **parts)
        generated: list[list[int]] = [[], []]
        events = fast.stream(prompts)
        with contextlib.suppress(RuntimeError):
            for event in events:
                generated[event.row] += event.ids

        assert at == failing.calls
        assert generated == [row[: len(new)] for row, new in zip(expected, generated, strict=True)]
        assert expected == fast(prompts).ids
