"""
Question: how often does the bundled draft agree with the target on held-out files.

Prompts are windows of 128 tokens from held-out files of the standard library, one from each file before a
second from any; what follows is generated with speculation. Decoding is eager: this counts tokens, not
time.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from ...decoding import Generator, Greedy, MaxNewTokens, Sample, Statistics
from ...neuron_backend import compile_decoder
from ...processors import Temperature
from ...speculation import DraftModel
from ..measuring.arguments import add_json, check_at_least, check_temperatures
from ..measuring.report import Report, finish
from ..measuring.tables import Table
from ..models.bundled_pair import PROMPT_LENGTH, held_out_prompts, pair_folder

ROWS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--prompts", type=int, default=128)
    add("--tokens", type=int, default=128)
    add("--temp", type=float, default=0.7)
    add("--num-draft-tokens", type=int, default=4)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Measure, and report."""
    for name in ("prompts", "tokens", "num_draft_tokens"):
        check_at_least(name, getattr(options, name), 1)
    check_temperatures("temp", [options.temp])
    k = options.num_draft_tokens
    windows = held_out_prompts(options.prompts)
    total = measure(windows, options.tokens, options.temp, k)
    counts = zip(total.drafted, total.reached, total.accepted, strict=True)
    rows = [
        (i + 1, drafted, reached, accepted, accepted / reached if reached else None)
        for i, (drafted, reached, accepted) in enumerate(counts)
    ]
    columns = ("position", "drafted", "all before accepted", "accepted", "share")
    report = Report(
        benchmark="acceptance",
        question="How often does the bundled draft agree with the target on held-out files?",
        settings={"prompts": len(windows), "tokens": total.tokens, "temperature": options.temp, "k": k},
        tables=[Table("Draft tokens by position in the draft", columns, rows)],
        notes=[f"Mean accepted length τ = {total.mean_accepted_length:.2f} tokens a target forward."],
        results={
            "tau": total.mean_accepted_length,
            "drafted": total.drafted,
            "reached": total.reached,
            "accepted": total.accepted,
        },
    )
    finish(report, options.json)


def measure(
    windows: Sequence[list[int]], tokens: int, temperature: float, num_draft_tokens: int
) -> Statistics:
    """Generate *tokens* after each of *windows*, of 128 tokens; the statistics of all runs."""
    shape: dict[str, Any] = {"batch_size": ROWS, "max_length": 512, "target": "eager", "dtype": "float32"}
    k, prefill, pair = num_draft_tokens, PROMPT_LENGTH, pair_folder()
    target = compile_decoder(pair / "target", widths=(1, k + 1, prefill), scored_width=k + 1, **shape)
    draft = compile_decoder(pair / "draft", widths=(1, 2, prefill), scored_width=1, **shape)
    generator = Generator(
        target,
        drafter=DraftModel(draft),
        num_draft_tokens=k,
        processors=None if temperature == 0 else Temperature(temperature),
        sampler=Greedy() if temperature == 0 else Sample(seed=0),
        stop=MaxNewTokens(tokens),
    )
    total = Statistics()
    for start in range(0, len(windows), ROWS):
        rows = windows[start : start + ROWS]
        total += generator(rows, random_streams=range(start, start + len(rows))).statistics
    return total
