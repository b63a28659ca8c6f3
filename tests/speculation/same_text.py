"""Comparison of speculative and plain decoding, for one drafter at a time."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from decodekit.decoding import (
    Draft,
    EndOfSequence,
    Generator,
    Greedy,
    History,
    MaxNewTokens,
    Sample,
    SamplingPipeline,
)
from decodekit.decoding.protocols import Drafter, SamplesTokens
from decodekit.processors import RepetitionPenalty, Temperature
from decodekit.speculation import SpeculativeGenerator
from decodekit.testing import ScriptedDecoder, last_token

VOCAB = 9
SHAPE = {"max_length": 72, "widths": (1, 7, 32), "scored_width": 7}


def history(rows: Sequence[Sequence[int]], prompts: Sequence[int] | None = None) -> History:
    """History of *rows* with garbage after them; *prompts* are the prompt lengths, 1 by default."""
    ids = torch.full((len(rows), 1, max(map(len, rows)) + 20), 10**9)
    for row, tokens in enumerate(rows):
        ids[row, 0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    length = torch.tensor([[len(tokens)] for tokens in rows])
    prompt = torch.tensor([1] * len(rows) if prompts is None else prompts)
    return History(ids, length, prompt, torch.arange(len(rows)))


def draft_ids(drafter: Drafter, rows: Sequence[Sequence[int]], budget: Sequence[int]) -> list[list[int]]:
    """Draft of *drafter* for each row."""
    draft = drafter.propose(history(rows), torch.tensor(budget), SamplingPipeline(None, Greedy()))
    return [[i for i in row if i >= 0] for row in draft.ids.tolist()]


def table(seed: int, vocab: int = VOCAB) -> Tensor:
    """Logits for a scripted decoder."""
    return 2 * torch.randn(41, vocab, generator=torch.Generator().manual_seed(seed))


def check_same_text(make: Callable[[Tensor], Drafter], cases: int = 20) -> int:
    """
    Generate with and without a drafter, greedily and by sampling, in ragged batches that take turns.

    Args:
        make: The table that the target reads from to a drafter for four rows.

        cases: How many.

    Returns:
        Number of accepted draft tokens.
    """
    accepted = 0
    for case in range(cases):
        dice, scores = random.Random(case), table(case)
        # Half of the texts become periodic.
        target = ScriptedDecoder(scores, 4, **SHAPE, **({"line": last_token} if case % 2 else {}))
        parts: dict[str, Any] = {
            "processors": (None, Temperature(0.6), RepetitionPenalty(1.2) | Temperature(0.4))[case % 3],
            "sampler": Greedy() if case % 5 < 2 else Sample(seed=case),
            "stop": EndOfSequence(0) | MaxNewTokens(dice.choice([9, 30, 100])),
        }
        fast = SpeculativeGenerator(target, make(scores), num_draft_tokens=1 + case % 6, **parts)
        plain = Generator(target, **parts)
        for _ in range(2):
            rows = dice.randint(1, 4)
            prompts = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 60))] for _ in range(rows)]
            random_streams = [dice.randrange(100) for _ in range(rows)]
            expected, actual = plain(prompts, random_streams), fast(prompts, random_streams)
            accepted += sum(actual.statistics.accepted)

            assert (expected.ids, expected.finishes) == (actual.ids, actual.finishes), case
    return accepted


class Failing:
    """*drafter*, raising on the *at*-th call."""

    def __init__(self, drafter: Drafter, at: int) -> None:
        self.drafter, self.at, self.calls = drafter, at, 0

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        self.calls += 1
        if self.calls == self.at:
            raise RuntimeError("broken")
        return self.drafter.propose(history, budget, sample)
