"""
How many times faster than transformers a token is chosen.

Times ``Choose`` (a chain and ``Sample``) against the same chain of transformers' own processors
followed by a softmax and ``torch.multinomial``, side by side on random float32 logits: some calls
of the one, then of the other, round after round, the first few of each not counted. A third column is
what transformers-neuronx does, where that applies: one ``torch.topk``, then everything on the
survivors.

    python benchmarks/processors.py [--vocab 151936] [--threads 2] [--json FILE]
"""

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from decodekit.bench.report import Bar, Report, Spread, Table, finish
from decodekit.decoding import Choose, History, Sample
from decodekit.processors import Chain, NoRepeatNgram, RepetitionPenalty, Temperature, TopK, TopP

UNCOUNTED, IN_A_ROW = 5, 15
"""The first calls find the caches full of somebody else's numbers."""


@attrs.frozen
class Case:
    """One chain, ours and theirs."""

    name: str
    ours: Chain
    theirs: list[Any]
    scale: float
    """Standard deviation of the logits: 3 is peaked, 0.5 flat."""

    history: int = 256
    """Tokens before the position."""

    top_k: int | None = None
    """Survivors of the single top-k, where transformers-neuronx's way applies."""

    goal: float = 0.0
    """How many times faster than transformers we mean to be."""


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


def by_transformers(theirs: list[Any], ids: Tensor, logits: Tensor) -> Tensor:
    """The way of ``transformers.generate``."""
    for processor in theirs:
        logits = processor(ids, logits)
    return torch.multinomial(logits.softmax(dim=-1), 1)


def by_one_top_k(k: int, penalised: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """The way of transformers-neuronx: one top-k, then temperature, top-p and draw on the survivors."""
    values, ids = torch.topk(penalised(logits), k)
    values = values / 0.8
    falls = values.softmax(dim=-1).cumsum(dim=-1).roll(1, dims=-1) >= 0.9
    falls[..., 0] = False
    drawn = torch.multinomial(values.masked_fill(falls, -torch.inf).softmax(dim=-1), 1)
    return ids.gather(-1, drawn)


def milliseconds(calls: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Each call's times, one a round: the median of some in a row, after a few that are not counted."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, spent in zip(calls, times, strict=True):
            for _ in range(UNCOUNTED):
                call()
            few = []
            for _ in range(IN_A_ROW):
                start = time.perf_counter()
                call()
                few.append(1e3 * (time.perf_counter() - start))
            spent.append(statistics.median(few))
    return times


def measure(case: Case, batch: int, vocab: int, rounds: int) -> dict[str, Any]:
    """Time one case at one batch size."""
    rng = torch.Generator().manual_seed(batch)
    logits = case.scale * torch.randn(batch, 1, vocab, generator=rng)
    ids = torch.randint(0, vocab, (batch, case.history), generator=rng)
    # A decoder's history has room for what is still to come.
    room = torch.cat([ids, ids], dim=1)[:, None]
    length = torch.full((batch, 1), case.history)
    history = History(room, length, length[:, 0], torch.arange(batch))
    choose = Choose(case.ours, Sample())
    calls: list[Callable[[], object]] = [
        lambda: choose(logits, history),
        lambda: by_transformers(case.theirs, ids, logits[:, 0]),
    ]
    if case.top_k is not None:
        penalty = hf.RepetitionPenaltyLogitsProcessor(1.1)
        calls.append(lambda: by_one_top_k(case.top_k, lambda x: penalty(ids, x), logits[:, 0]))
    times = milliseconds(calls, rounds)
    median = [statistics.median(spent) for spent in times]
    return {
        "case": case.name,
        "batch": batch,
        "ours_ms": median[0],
        "ours_spread_ms": [min(times[0]), max(times[0])],
        "transformers_ms": median[1],
        "one_top_k_ms": median[2] if len(median) > 2 else None,
        "times_faster": statistics.median(b / a for a, b in zip(times[0], times[1], strict=True)),
        "goal": case.goal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    results = [measure(case, batch, args.vocab, args.rounds) for case in CASES for batch in args.batch]
    rows = [
        (
            found["case"],
            found["batch"],
            str(Spread(found["ours_ms"], *found["ours_spread_ms"], args.rounds)),
            found["transformers_ms"],
            found["times_faster"],
            found["one_top_k_ms"],
            found["one_top_k_ms"] and found["one_top_k_ms"] / found["ours_ms"],
        )
        for found in results
    ]
    columns = ("chain", "batch", "ours", "transformers", "times", "one top-k", "times")
    finish(
        Report(
            benchmark="processors",
            question="How many times faster than transformers is a token chosen?",
            settings={"vocabulary": args.vocab, "threads": args.threads, "rounds": args.rounds},
            tables=[Table("Milliseconds a choice: chain and selection", columns, rows)],
            bars=[
                Bar(
                    f"{found['case']}, batch {found['batch']}",
                    found["times_faster"],
                    ">=",
                    found["goal"],
                    "×",
                )
                for found in results
            ],
            results=results,
        ),
        args.json,
    )


if __name__ == "__main__":
    main()
