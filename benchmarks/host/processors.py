"""
Question: how many times faster than transformers is a token sampled.

Times ``SamplingPipeline`` (a chain and ``Sample``) against the same chain of transformers' own processors
followed by a softmax and ``torch.multinomial``, in turns on random float32 logits. A third column is the
method of transformers-neuronx, where that applies: one ``torch.topk``, then everything on the survivors.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from ...decoding import History, Sample, SamplingPipeline
from ...processors import Chain, NoRepeatNgram, RepetitionPenalty, Temperature, TopK, TopP
from ..measuring.arguments import add_common
from ..measuring.report import Report, Threshold, finish
from ..measuring.tables import Spread, Table
from ..measuring.timing import median_ratio, milliseconds_in_turns

_WARM_UP, _IN_A_ROW = 5, 15


@attrs.frozen
class Case:
    """One chain, of decodekit and of transformers."""

    name: str
    ours: Chain
    theirs: list[Any]
    scale: float
    """Standard deviation of the logits: 3 is peaked, 0.5 flat."""

    history: int = 256
    """Tokens before the position."""

    top_k: int | None = None
    """Survivors of the single top-k, where transformers-neuronx's method applies."""

    goal: float = 0.0
    """Times faster than transformers."""


CASES = [
    Case(
        "penalty + T + top-k 50 + top-p 0.9",
        RepetitionPenalty(1.1) | Temperature(0.8) | TopK(50) | TopP(0.9),
        [
            hf.RepetitionPenaltyLogitsProcessor(1.1),
            hf.TemperatureLogitsWarper(0.8),
            hf.TopKLogitsWarper(50),
            hf.TopPLogitsWarper(0.9),
        ],
        3.0,
        top_k=50,
        goal=20,
    ),
    Case(
        "T + top-p 0.9, peaked",
        Temperature(0.8) | TopP(0.9),
        [hf.TemperatureLogitsWarper(0.8), hf.TopPLogitsWarper(0.9)],
        3.0,
        goal=20,
    ),
    Case(
        "T + top-p 0.9, flat",
        Temperature(0.8) | TopP(0.9),
        [hf.TemperatureLogitsWarper(0.8), hf.TopPLogitsWarper(0.9)],
        0.5,
        goal=4,
    ),
    Case("temperature", Chain([Temperature(0.8)]), [hf.TemperatureLogitsWarper(0.8)], 3.0, goal=10),
    Case(
        "no-repeat 3-gram, 4096 tokens",
        Chain([NoRepeatNgram(3)]),
        [hf.NoRepeatNGramLogitsProcessor(3)],
        3.0,
        history=4096,
        goal=10,
    ),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--vocab", type=int, default=151_936)
    add("--batch", type=int, nargs="+", default=[1, 8])
    add_common(parser, rounds=5)


def run(options: argparse.Namespace) -> None:
    """Time every case, and report."""
    torch.set_num_threads(options.threads)
    results = [
        measure(case, batch, options.vocab, options.rounds) for case in CASES for batch in options.batch
    ]
    rows = [
        (
            found["case"],
            found["batch"],
            str(Spread.stored(found["ours_ms"], found["ours_spread_ms"], options.rounds)),
            found["transformers_ms"],
            found["times_faster"],
            found["one_top_k_ms"],
            found["one_top_k_ms"] and found["one_top_k_ms"] / found["ours_ms"],
        )
        for found in results
    ]
    columns = ("chain", "batch", "ours", "transformers", "times", "one top-k", "times")
    report = Report(
        benchmark="processors",
        question="How many times faster than transformers is a token sampled?",
        settings={"vocabulary": options.vocab, "threads": options.threads, "rounds": options.rounds},
        tables=[Table("Milliseconds of chain and sampler", columns, rows)],
        thresholds=[
            Threshold(
                f"{found['case']}, batch {found['batch']}", found["times_faster"], ">=", found["goal"], "×"
            )
            for found in results
        ],
        results=results,
    )
    finish(report, options.json)


def measure(case: Case, batch: int, vocab: int, rounds: int) -> dict[str, Any]:
    """Time one case at one batch size."""
    rng = torch.Generator().manual_seed(batch)
    logits = case.scale * torch.randn(batch, 1, vocab, generator=rng)
    ids = torch.randint(0, vocab, (batch, case.history), generator=rng)
    # A decoder's history has room for the tokens to come.
    room = torch.cat([ids, ids], dim=1)[:, None]
    length = torch.full((batch, 1), case.history)
    history = History(room, length, length[:, 0], torch.arange(batch))
    sample = SamplingPipeline(case.ours, Sample())
    calls: list[Callable[[], object]] = [
        lambda: sample(logits, history),
        lambda: by_transformers(case.theirs, ids, logits[:, 0]),
    ]
    if (k := case.top_k) is not None:
        penalty = hf.RepetitionPenaltyLogitsProcessor(1.1)
        calls.append(lambda: by_one_top_k(k, lambda x: penalty(ids, x), logits[:, 0]))
    times = milliseconds_in_turns(calls, rounds, warm_up=_WARM_UP, in_a_row=_IN_A_ROW)
    median = [statistics.median(spent) for spent in times]
    return {
        "case": case.name,
        "batch": batch,
        "ours_ms": median[0],
        "ours_spread_ms": [min(times[0]), max(times[0])],
        "transformers_ms": median[1],
        "one_top_k_ms": median[2] if len(median) > 2 else None,
        "times_faster": median_ratio(times[1], times[0]),
        "goal": case.goal,
    }


def by_transformers(theirs: list[Any], ids: Tensor, logits: Tensor) -> Tensor:
    """The method of ``transformers.generate``."""
    for processor in theirs:
        logits = processor(ids, logits)
    return torch.multinomial(logits.softmax(dim=-1), 1)


def by_one_top_k(k: int, penalised: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """The method of transformers-neuronx: one top-k, then temperature, top-p and draw on the survivors."""
    values, ids = torch.topk(penalised(logits), k)
    values = values / 0.8
    falls = values.softmax(dim=-1).cumsum(dim=-1).roll(1, dims=-1) >= 0.9
    falls[..., 0] = False
    drawn = torch.multinomial(values.masked_fill(falls, -torch.inf).softmax(dim=-1), 1)
    return ids.gather(-1, drawn)
