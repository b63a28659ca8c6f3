"""The runs of the speculation benchmark: generators and ``transformers.generate``, in turns."""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from transformers import LlamaForCausalLM

from ...decoding import (
    Decoder,
    ExactMatch,
    Generator,
    Greedy,
    MaxNewTokens,
    Sample,
    Slots,
    SpeculationStep,
    Verification,
)
from ...processors import Temperature
from ...speculation import AdaptiveLength, BlockVerification, DraftModel, SpeculativeGenerator
from .pair import Pair, SecondsByWidth


@attrs.define(eq=False)
class RecordedDraftLength:
    """A draft length that keeps the outcomes it learns from."""

    length: int | AdaptiveLength
    steps: list[SpeculationStep] = attrs.field(factory=list)

    @property
    def most(self) -> int:
        """The largest length."""
        return self.length if isinstance(self.length, int) else self.length.most

    def __call__(self, rows: int) -> int:
        """The draft length of the next step."""
        return self.length if isinstance(self.length, int) else self.length(rows)

    def learn(self, outcome: SpeculationStep) -> None:
        """Keep *outcome*, and pass it on."""
        self.steps.append(outcome)
        if not isinstance(self.length, int):
            self.length.learn(outcome)

    def prepare(self, decoder: Decoder, exact_width: bool = False) -> None:
        """Pass the target on."""
        if not isinstance(self.length, int):
            self.length.prepare(decoder, exact_width)


@attrs.frozen(eq=False)
class Run:
    """One run of one system over a batch of prompts."""

    seconds: float
    """From the call to the last token."""

    decode_seconds: float
    """From the first token to the last; all seconds if the first token's time is unknown."""

    ids: list[list[int]]
    steps: list[SpeculationStep]

    target: SecondsByWidth = attrs.field(factory=dict)
    draft: SecondsByWidth = attrs.field(factory=dict)

    @property
    def tokens(self) -> int:
        """New tokens of all rows."""
        return sum(map(len, self.ids))


System = Callable[[list[list[int]]], Run]
"""Generates text after a batch of prompts."""


def decodekit_run(
    generator: Generator,
    pair: Pair,
    drafter: Decoder | None = None,
    length: RecordedDraftLength | None = None,
) -> System:
    """Runs of *generator*, with empty caches at the start."""

    def run(prompts: list[list[int]]) -> Run:
        for decoder in (pair.target, pair.draft, drafter or pair.draft):
            Slots.of(decoder).forget()
        before = 0 if length is None else len(length.steps)
        pair.target.take_seconds(), pair.draft.take_seconds()
        start = time.perf_counter()
        result = generator(prompts)
        seconds = time.perf_counter() - start
        spent = result.statistics
        decode = spent.total_seconds - (spent.first_token_seconds or 0.0)
        steps = [] if length is None else length.steps[before:]
        target, draft = pair.target.take_seconds(), pair.draft.take_seconds()
        return Run(seconds, decode, result.ids, steps, target, draft)

    return run


def transformers_run(model: LlamaForCausalLM, temperature: float, tokens: int, **options: Any) -> System:
    """Runs of ``transformers.generate``."""
    if temperature > 0:
        options |= {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    else:
        options |= {"do_sample": False}
    generate: Any = model.generate

    def run(prompts: list[list[int]]) -> Run:
        ids = torch.tensor(prompts)
        mask = torch.ones_like(ids)
        start = time.perf_counter()
        out = generate(ids, attention_mask=mask, max_new_tokens=tokens, **options)
        seconds = time.perf_counter() - start
        return Run(seconds, seconds, out[:, ids.shape[1] :].tolist(), [])

    return run


def plain_and_drafted(
    pair: Pair, lengths: Sequence[str], temperature: float, tokens: int, draft: Decoder | None = None
) -> dict[str, System]:
    """
    Generators without a draft, and with one at each of *lengths*.

    Sampled text is verified by exact match, which gives plain decoding's text, and by block verification,
    which keeps only its distribution, as transformers does.
    """
    draft = pair.draft if draft is None else draft
    parts: dict[str, Any] = {
        "processors": Temperature(temperature) if temperature else None,
        "sampler": Sample(seed=0) if temperature else Greedy(),
        "stop": MaxNewTokens(tokens),
    }
    systems = {"plain": decodekit_run(Generator(pair.target, **parts), pair)}
    most = pair.target.shape.scored_width - 1
    verifications: dict[str, Verification] = {"": ExactMatch()} | (
        {", BlockVerification": BlockVerification()} if temperature else {}
    )
    for (how, verification), name in itertools.product(verifications.items(), lengths):
        if name.isdecimal() and int(name) > most:
            continue
        length = RecordedDraftLength(AdaptiveLength(most=most) if name == "adaptive" else int(name))
        generator = SpeculativeGenerator(
            pair.target,
            drafter=DraftModel(draft),
            num_draft_tokens=length,
            verification=verification,
            **parts,
        )
        systems[f"k = {name}{how}"] = decodekit_run(generator, pair, draft, length)
    return systems


def take_turns(
    systems: dict[str, System], batches: list[list[list[int]]], rounds: int
) -> dict[str, list[list[Run]]]:
    """Every system's runs, ``[batch][round]``, after one uncounted run each."""
    for run in systems.values():
        run(batches[0])
    runs: dict[str, list[list[Run]]] = {name: [[] for _ in batches] for name in systems}
    for _ in range(rounds):
        for i, prompts in enumerate(batches):
            for name, run in systems.items():
                runs[name][i].append(run(prompts))
    return runs


def median_seconds(runs: list[list[Run]]) -> float:
    """The median run of each batch, added up."""
    return sum(statistics.median(run.seconds for run in of_batch) for of_batch in runs)


def median_decode_seconds(runs: list[list[Run]]) -> float:
    """The same for the time after the first token."""
    return sum(statistics.median(run.decode_seconds for run in of_batch) for of_batch in runs)
