"""Random parts of a generation, each of which can be made for some of the rows alone."""

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias, TypeVar

import torch
from hypothesis import HealthCheck, Phase, given, settings
from torch import Tensor

from decodekit.decoding import (
    AdaptiveP,
    EndOfSequence,
    ExactMatch,
    Greedy,
    MaxLength,
    MaxNewTokens,
    Mirostat,
    Sample,
    StatefulSampler,
    StopTokens,
)
from decodekit.decoding.protocols import (
    Drafter,
    DraftLength,
    Processor,
    Sampler,
    StopCondition,
    Verification,
)
from decodekit.processors import Chain, Temperature
from decodekit.speculation import AdaptiveLength, BlockVerification, DraftModel, RejectionSampling

from ..decoding.stopping.test_stop_conditions import CONDITIONS, IN_ORDER
from ..processors.entries.entry import NONE
from ..processors.test_catalogue import CATALOGUE
from ..speculation.drafters.test_every_drafter import DRAFTERS, draft_of
from ..speculation.test_speculation_changes_nothing import Adversary, Holes, Nothing, Ragged
from ..speculation.worlds import Garbage, OneMoreThanAccepted

Rows: TypeAlias = Sequence[int]
P = TypeVar("P")
ForRows: TypeAlias = Callable[[Rows], P]
"""Makes a part for the rows of these numbers, with their parameters."""

ALL_DRAFTERS: dict[str, Callable[[Tensor, int], Drafter]] = {
    **DRAFTERS,
    "wrong": lambda table, seed: Adversary(DraftModel(draft_of(table, seed))),
    "ragged": lambda table, seed: Ragged(DraftModel(draft_of(table, seed))),
    "holes": lambda table, seed: Holes(DraftModel(draft_of(table, seed))),
    "nothing": lambda table, seed: Nothing(),
    "garbage": lambda table, seed: Garbage(),
}


@cache
def values_of(name: str) -> list[Any]:
    """Values of the parameter of a catalogue entry, the same in every process."""
    entry = CATALOGUE[name]
    values = [entry.example] if entry.neutral is NONE else [entry.example, entry.neutral]

    @settings(
        max_examples=40,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(entry.parameters)
    def draw(value: Any) -> None:
        values.append(value)

    draw()
    return values


def random_stage(dice: random.Random, batch: int) -> ForRows[Processor]:
    """One processor of the catalogue, its parameter sometimes one for each row."""
    name = dice.choice(list(CATALOGUE))
    entry = CATALOGUE[name]
    if entry.rows and dice.random() < 0.4:
        values = dice.choices(values_of(name), k=batch)
        return lambda rows: entry.make([values[row] for row in rows])
    processor = entry.make(dice.choice(values_of(name)))
    return lambda rows: processor


def random_chain(dice: random.Random, batch: int) -> ForRows[Processor | None]:
    """Up to four stages, and usually a temperature."""
    stages = [random_stage(dice, batch) for _ in range(dice.choice([0, 1, 1, 2, 3, 4]))]
    if dice.random() < 0.7:
        heat = [dice.choice([1e-3, 0.3, 0.8, 1.0, 1.8]) for _ in range(batch)]
        per_row = dice.random() < 0.3
        position = dice.randint(0, len(stages))
        stages.insert(position, lambda rows: Temperature([heat[row] for row in rows] if per_row else heat[0]))
    return lambda rows: Chain([stage(rows) for stage in stages]) if stages else None


def random_sampler(dice: random.Random, speculative: bool, compares: bool) -> Sampler | StatefulSampler:
    """A sampler that can run under such a speculation."""
    seed = dice.choice([0, 7, -1, 2**62])
    if compares:
        return Sample(seed=seed)
    if speculative:
        return dice.choice([Greedy(), Sample(seed=seed), Sample(seed=seed)])
    return dice.choice(
        [
            Greedy(),
            Sample(seed=seed),
            Sample(seed=seed),
            Mirostat(dice.choice([1.0, 5.0]), version=dice.choice([1, 2]), seed=seed),
            AdaptiveP(dice.random(), seed=seed),
        ]
    )


def random_stop(dice: random.Random, batch: int) -> ForRows[StopCondition]:
    """A condition of the catalogue and a limit, which may be one for each row."""
    conditions = [make() for make in dice.sample([*CONDITIONS.values(), *IN_ORDER.values()], 2)]
    conditions += [EndOfSequence(0), StopTokens([4, 6], hide=True), MaxLength(dice.randint(2, 30))]
    condition, other = dice.sample(conditions, 2)
    limits = [dice.randint(1, 20) for _ in range(batch)]
    kind = dice.randrange(5)

    def make(rows: Rows) -> StopCondition:
        limit = MaxNewTokens([limits[row] for row in rows] if kind % 2 else limits[0])
        composed: list[StopCondition] = [
            limit,
            condition | limit,
            condition | other | MaxNewTokens(99),
            (condition & limit) | MaxNewTokens(25),
            limit | (other & condition),
        ]
        return composed[kind]

    return make


def random_verification(dice: random.Random, trees: bool) -> Verification:
    """Exact match four times of six, and always for trees."""
    if trees:
        return ExactMatch()
    return dice.choice([ExactMatch()] * 4 + [RejectionSampling(), BlockVerification()])


def random_length(dice: random.Random, most: int) -> Callable[[], int | DraftLength]:
    """A draft length up to *most*, or a new policy."""
    number = dice.randint(0, most)
    return dice.choice(
        [lambda: number, lambda: number, lambda: AdaptiveLength(most), lambda: OneMoreThanAccepted(most)]
    )


def random_table(dice: random.Random, vocab: int) -> Tensor:
    """Logits of a scripted decoder, now and then with lines that are not numbers or leave no token."""
    rng = torch.Generator().manual_seed(dice.randrange(2**32))
    table = dice.choice([0.5, 1.5, 4.0]) * torch.randn(37, vocab, generator=rng)
    if dice.random() < 0.15:
        table[dice.randrange(37), dice.randrange(vocab)] = dice.choice([torch.nan, torch.inf, -torch.inf])
    if dice.random() < 0.05:
        table[dice.randrange(37)] = -torch.inf
    if dice.random() < 0.1:
        # Ties: equal logits at every choice.
        table = table.round()
    return table
