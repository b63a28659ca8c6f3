"""Speculative decoding = plain decoding = each row alone, token for token."""

import random
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.decoding import (
    Draft,
    EndOfSequence,
    Generation,
    Generator,
    Greedy,
    History,
    MaxNewTokens,
    Sample,
    StopStrings,
    StopTokens,
)
from decodekit.decoding.protocols import Drafter, Processor, SamplesTokens, StopCondition
from decodekit.processors import (
    Chain,
    FrequencyPenalty,
    LogitBias,
    MinNewTokens,
    MinP,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
)
from decodekit.speculation import DraftModel, PromptLookup, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder

VOCAB, MAX_LENGTH = 12, 72


@attrs.frozen(eq=False)
class Garbled(Generator):
    """A generator whose histories hold garbage wherever there is no token yet."""

    def _history(
        self, rows: list[list[int]], random_streams: Sequence[int] | None, seed: int | None = None
    ) -> History:
        history = super()._history(rows, random_streams, seed)
        garbage = torch.randint(-(10**9), 10**9, history.ids.shape)
        return attrs.evolve(history, ids=torch.where(history.valid(), history.ids, garbage))


@attrs.frozen(eq=False)
class GarbledSpeculative(SpeculativeGenerator, Garbled):
    """The same with a drafter."""


@attrs.frozen(eq=False)
class Adversary:
    """Drafts tokens that differ from those of *drafter*."""

    drafter: Drafter

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        ids = self.drafter.propose(history, budget, sample).ids
        return Draft(torch.where(ids >= 0, (ids + 1) % VOCAB, ids))


@attrs.frozen(eq=False)
class Ragged:
    """*drafter*, with some drafts cut short, differently in each row."""

    drafter: Drafter

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        draft = self.drafter.propose(history, budget, sample)
        short = (history.length + torch.arange(len(budget))[:, None] * 5) % 7
        return Draft(draft.ids.masked_fill(torch.arange(draft.ids.shape[1]) >= short, -1))


@attrs.frozen(eq=False)
class Holes:
    """*drafter*, with a token missing in the middle of each draft."""

    drafter: Drafter

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        draft = self.drafter.propose(history, budget, sample)
        hole = history.length % 4
        return Draft(draft.ids.masked_fill(torch.arange(draft.ids.shape[1]) == hole, -1))


class Nothing:
    """Empty drafts."""

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        return Draft(torch.empty(len(budget), 0, dtype=torch.int64))


def drafter(kind: str, table: Tensor, batch_size: int) -> Drafter:
    """A drafter over a scripted decoder of *table*, or of one like it."""
    generator = torch.Generator().manual_seed(5)
    noise = {"perturbed": 0.7, "ragged": 0.3, "holes": 0.1}.get(kind, 0.0)
    table = table + noise * torch.randn(table.shape, generator=generator)
    model = DraftModel(ScriptedDecoder(table, batch_size, MAX_LENGTH, widths=(1, 8), scored_width=1))
    kinds = {
        "perfect": model,
        "perturbed": model,
        "adversarial": Adversary(model),
        "ragged": Ragged(model),
        "holes": Holes(model),
        "empty": Nothing(),
        "lookup": PromptLookup(),
    }
    return kinds[kind]


def chain(kind: int, temperature: float, rows: Sequence[int]) -> Processor | None:
    """Chains with and without history, in usual order, for the rows numbered *rows*."""
    heat = Temperature(temperature)
    chains: list[Processor | None] = [
        None,
        heat,
        heat | TopK(5) | TopP(0.9),
        MinP(0.05) | heat,
        RepetitionPenalty(1.3) | heat | TopK(6),
        NoRepeatNgram(2) | heat,
        PresencePenalty(0.6) | FrequencyPenalty(0.4) | heat,
        SuppressTokens([3]) | LogitBias({1: 1.5, 2: -2.0}) | MinNewTokens(6, [0]) | heat,
        RepetitionPenalty(1.2) | NoRepeatNgram(3) | heat | TopP(0.8) | MinP(0.02),
        Chain(),
        RepetitionPenalty([1.0 + 0.1 * row for row in rows])
        | Temperature([temperature + 0.2 * row for row in rows])
        | TopK([4 + row for row in rows]),
    ]
    return chains[kind % len(chains)]


class Letters:
    """A tokenizer: a token is one or two of three letters."""

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return "".join(PIECES[i] for i in token_ids)

    def convert_ids_to_tokens(self, index: int) -> str:
        return PIECES[index]


PIECES = ["a", "b", "c", "aa", "ab", "ac", "ba", "bb", "bc", "ca", "cb", "cc"]


def stop(kind: int, rows: Sequence[int]) -> StopCondition:
    """Stops that cut a step's tokens and end rows at different times, for the rows numbered *rows*."""
    stops: list[StopCondition] = [
        MaxNewTokens(17),
        EndOfSequence(0) | MaxNewTokens(25),
        StopTokens([4, 9], hide=True) | EndOfSequence([0, 1]) | MaxNewTokens(30),
        MaxNewTokens([5 + 4 * row for row in rows]),
        MaxNewTokens(100),  # so that the last position ends the row
        MaxNewTokens(4) & StopTokens([5, 6, 7]),
        StopStrings(["abba", "cabc", "bbbb"], Letters()) | MaxNewTokens(40),
        StopStrings(["acab", "cc"], Letters(), hide=False) & MaxNewTokens(3),
    ]
    return stops[kind % len(stops)]


def outcome(result: Generation) -> list[tuple[list[int], str, str]]:
    """Ids, text and reason of each row."""
    assert result.text is not None
    reasons = [finish.reason if finish else "?" for finish in result.finishes]
    return list(zip(result.ids, result.text, reasons, strict=True))


DRAFTS = ("perfect", "perturbed", "adversarial", "ragged", "holes", "empty", "lookup")
CASES_A_BLOCK = 28


@pytest.mark.mostly_slow(every=20)
@pytest.mark.parametrize("block", range(40))
def test_scripted(block: int) -> None:
    """1,120 cases: seeds, prompts, temperatures, chains, stops, drafts and k, on scripted decoders."""
    for case in range(block * CASES_A_BLOCK, (block + 1) * CASES_A_BLOCK):
        dice = random.Random(case)
        table = torch.randn(61, VOCAB, generator=torch.Generator().manual_seed(case)) * 1.5
        rows, k = dice.randint(1, 4), dice.randint(1, 6)
        prompts = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 60))] for _ in range(rows)]
        random_streams = [dice.randrange(1000) for _ in range(rows)]
        sampler = Greedy() if case % 5 == 0 else Sample(seed=case)
        temperature, every = dice.choice([0.3, 0.7, 1.0, 1.8]), range(rows)
        parts = {"sampler": sampler, "tokenizer": Letters()}
        together = {**parts, "processors": chain(case, temperature, every), "stop": stop(case // 11, every)}
        shape = {"max_length": MAX_LENGTH, "widths": (1, 7, 32), "scored_width": 7}

        plain = Generator(ScriptedDecoder(table, 4, **shape), **together)
        draft = drafter(DRAFTS[case % len(DRAFTS)], table, 4)
        fast = GarbledSpeculative(ScriptedDecoder(table, 4, **shape), draft, num_draft_tokens=k, **together)
        expected = outcome(plain(prompts, random_streams))

        assert expected == outcome(fast(prompts, random_streams)), case

        single = ScriptedDecoder(table, 1, **shape)
        for row in every:
            alone = {**parts, "processors": chain(case, temperature, [row]), "stop": stop(case // 11, [row])}
            by_itself = Garbled(single, **alone)

            assert [expected[row]] == outcome(by_itself(prompts[row], random_streams[row : row + 1])), (
                case,
                row,
            )
