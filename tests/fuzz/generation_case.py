"""A random generation: decoder, parts and prompts, made from one seed."""

import random
from collections.abc import Sequence
from typing import Any

import attrs
from torch import Tensor

from decodekit.decoding import (
    Decoder,
    ExactMatch,
    Generation,
    Generator,
    Logprobs,
    Sampler,
    StatefulSampler,
)
from decodekit.decoding.optional_protocols import stages_of
from decodekit.decoding.protocols import Drafter, Processor, StopCondition, Verification
from decodekit.speculation import SpeculativeGenerator
from decodekit.testing import ScriptedDecoder, last_token, whole_prefix

from ..decoding.stopping.test_stop_strings import Pieces
from .parts_of_generations import (
    ALL_DRAFTERS,
    ForRows,
    random_chain,
    random_length,
    random_sampler,
    random_stop,
    random_table,
    random_verification,
)

VOCAB = 8
"""The pieces of the tokenizer that the catalogue's stop conditions read."""

MAX_LENGTH = 30
WIDTHS = [((1, 5, 16), 5), ((1, 2, 5), 5), ((5,), 5), ((2, 5, 30), 5), ((1, 7), 7)]


@attrs.frozen(eq=False)
class Case:
    """What is generated from, and with."""

    seed: int
    table: Tensor
    dependence: Any
    """Which tokens the table's line depends on."""

    widths: tuple[tuple[int, ...], int]
    prompts: list[list[int]]
    random_streams: list[int]
    chain: ForRows[Processor | None]
    sampler: Sampler | StatefulSampler
    stop: ForRows[StopCondition]
    drafting: str | None
    """The drafter's name; None for plain decoding alone."""

    verification: Verification
    length: Any
    logprobs: Logprobs | None
    options: dict[str, Any]

    @property
    def kind(self) -> str:
        """For the counts of a campaign."""
        if self.drafting is None:
            return f"plain, {type(self.sampler).__name__}"
        return type(self.verification).__name__ + (", trees" if self.trees else "")

    @property
    def trees(self) -> bool:
        """Whether the drafter proposes trees."""
        return self.drafting in TREES

    def decoder(self, rows: int, table: Tensor | None = None) -> ScriptedDecoder:
        """A decoder of that many rows, with an empty cache."""
        widths, scored = self.widths
        return ScriptedDecoder(
            self.table if table is None else table,
            rows,
            MAX_LENGTH,
            widths,
            scored,
            line=self.dependence,
            tree_widths=(8, 20),
        )

    def plain(self, decoder: Decoder, rows: Sequence[int], **changes: Any) -> Generator:
        """The generator without a drafter, for the rows of these numbers."""
        return Generator(decoder, **{**self._parts(rows), **changes})

    def speculative(self, decoder: Decoder, drafter: Drafter | None = None, **changes: Any) -> Generator:
        """The generator with *drafter*, or with a new one, for all rows."""
        parts = self._parts(range(len(self.prompts)))
        if self.trees:
            # Trees have programs of their own.
            parts["exact_width"] = False
        speculation = {"num_draft_tokens": self.length(), "verification": self.verification}
        drafter = self.drafter() if drafter is None else drafter
        return SpeculativeGenerator(decoder, drafter, **{**parts, **speculation, **changes})

    def generator(self, decoder: Decoder, drafter: Drafter | None = None, **changes: Any) -> Generator:
        """With a drafter where the case has one, for all rows."""
        if self.drafting is None:
            return self.plain(decoder, range(len(self.prompts)), **changes)
        return self.speculative(decoder, drafter, **changes)

    def drafter(self) -> Drafter:
        """A new drafter, over new decoders."""
        assert self.drafting is not None
        return ALL_DRAFTERS[self.drafting](self.table.nan_to_num(0.0, 9.0, -9.0), self.seed)

    def run(self, generator: Generator, rows: Sequence[int] | None = None, **options: Any) -> Generation:
        """One call, for some of the rows or all."""
        numbers = range(len(self.prompts)) if rows is None else rows
        prompts = [self.prompts[row] for row in numbers]
        streams = [self.random_streams[row] for row in numbers]
        return generator(prompts, streams, logprobs=self.logprobs, **options)

    def _parts(self, rows: Sequence[int]) -> dict[str, Any]:
        chain, stop = self.chain(rows), self.stop(rows)
        return {"processors": chain, "sampler": self.sampler, "stop": stop, **self.options}


TREES = ("mixed trees", "forced tree", "comb", "bush", "fan")


def random_prompts(dice: random.Random, batch: int) -> list[list[int]]:
    """Ragged prompts, some of which begin alike."""
    prompts: list[list[int]] = []
    for _ in range(batch):
        shared = dice.choice(prompts)[: dice.randint(0, 20)] if prompts and dice.random() < 0.4 else []
        rest = [dice.randrange(VOCAB) for _ in range(dice.randint(1, MAX_LENGTH))]
        prompts.append((shared + rest)[: dice.choice([MAX_LENGTH, 12, 3])])
    return prompts


def random_case(seed: int) -> Case:
    """The case of *seed*."""
    dice = random.Random(seed)
    drafting = dice.choice(list(ALL_DRAFTERS)) if dice.random() < 0.6 else None
    # The drafters' own decoders have four rows.
    batch = dice.randint(1, 4 if drafting else 5)
    verification = random_verification(dice, drafting in TREES) if drafting else ExactMatch()
    compares = not isinstance(verification, ExactMatch)
    sampler = random_sampler(dice, drafting is not None, compares)
    chain = random_chain(dice, batch)
    stage: Any = dice.choice(["raw", "processed", *range(len(stages_of(chain(range(batch)))))])
    tokenizer = Pieces() if dice.random() < 0.6 else None
    return Case(
        seed,
        random_table(dice, VOCAB),
        dice.choice([whole_prefix, whole_prefix, last_token]),
        dice.choice(WIDTHS),
        random_prompts(dice, batch),
        [dice.choice([dice.randrange(100), 2**63 - 1, -1]) for _ in range(batch)],
        chain,
        sampler,
        random_stop(dice, batch),
        drafting,
        verification,
        random_length(dice, 4),
        Logprobs(dice.randint(0, VOCAB), stage) if dice.random() < 0.4 else None,
        {
            "tokenizer": tokenizer,
            "echo_prompt": tokenizer is not None and dice.random() < 0.3,
            "exact_width": dice.random() < 0.2,
        },
    )
