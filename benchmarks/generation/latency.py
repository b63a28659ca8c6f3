"""
Question: how many seconds to reach a length of 1,024 tokens from 25, 50 and 75 % of it.

The question of the Hugging Face blog on Llama and AWS Inferentia2, with its figures beside ours.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import attrs

from ..measuring.arguments import add_common, add_plot, check_at_least, progress
from ..measuring.machine import machine_facts
from ..measuring.report import Curves, Report, finish
from ..measuring.tables import Spread, Table, number
from ..models.measured_model import (
    ModelUnderTest,
    add_model,
    decoder_settings,
    device_name,
    generate,
    model_notes,
    models_of,
    prefill_widths,
    random_prompts,
)
from ..peers.published_figures import LATENCIES, LATENCY_LENGTH, LATENCY_SOURCE

SHARES = (0.25, 0.5, 0.75)

_WARM_UP = 4
"""Tokens generated before a measurement: every program has run by then."""


@attrs.frozen
class LatencyMeasurement:
    """One model at one batch size."""

    model: ModelUnderTest
    batch: int
    device: str
    seconds: tuple[tuple[float, ...], ...]
    """By share of the length, a number a round."""

    tokens: tuple[int, ...]
    """New tokens of all rows, by share."""

    settings: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add_model(parser, "llama-2-7b", several=True)
    add = parser.add_argument
    add("--batch", type=int, nargs="+", default=[1], metavar="N", help="rows (1)")
    add("--length", type=int, default=1024, metavar="N", help="tokens of a row in the end (%(default)s)")
    add_common(parser, rounds=3)
    add_plot(parser)


def run(options: argparse.Namespace) -> None:
    """Measure every model at every batch size, and report."""
    found = []
    for model in models_of(options):
        for batch in options.batch:
            progress(f"{model.name}, batch {batch}")
            found.append(measure(model, batch, options.length, options.rounds))
    finish(report(found, options.length, options.rounds), options.json, options.plot)


def measure(model: ModelUnderTest, batch: int, length: int, rounds: int) -> LatencyMeasurement:
    """
    Time generations up to *length*.

    Args:
        model: Compiled for the measurement.

        batch: Rows.

        length: Tokens of a row in the end; at least 8.

        rounds: Counted runs.

    Raises:
        ValueError: An argument is invalid.
    """
    check_at_least("length", length, 8)
    check_at_least("rounds", rounds, 1)
    starts = [int(share * length) for share in SHARES]
    decoder = model.decoder(batch, length, prefill_widths(starts))
    seconds: list[tuple[float, ...]] = []
    tokens = []
    for start in starts:
        prompts = random_prompts(decoder, start)
        generate(decoder, prompts, min(_WARM_UP, length - start))
        runs = [generate(decoder, prompts, length - start) for _ in range(rounds)]
        seconds.append(tuple(run.total_seconds for run in runs))
        tokens.append(runs[0].tokens)
    settings = decoder_settings(decoder)
    return LatencyMeasurement(model, batch, device_name(decoder), tuple(seconds), tuple(tokens), settings)


def report(found: Sequence[LatencyMeasurement], length: int, rounds: int) -> Report:
    """Our figures, and the published ones of the same shapes."""
    shapes = {each.model.name for each in found}
    published = [each for each in LATENCIES if each.shape in shapes]
    new = [LATENCY_LENGTH - int(share * LATENCY_LENGTH) for share in SHARES]
    rows: list[tuple[Any, ...]] = []
    rates: list[tuple[Any, ...]] = []
    curves = {}
    for each in found:
        label, spreads = each.model.label(each.device), [Spread.of(seconds) for seconds in each.seconds]
        rows.append((label, each.batch, *map(str, spreads)))
        speeds = (n / spread.median for n, spread in zip(each.tokens, spreads, strict=True))
        rates.append((label, each.batch, *speeds))
        curves[f"{each.model.name}, batch {each.batch}"] = _curve([spread.median for spread in spreads])
    for other in published:
        label = f"published: {other.name}"
        rows.append((label, other.batch, *map(number, other.seconds)))
        speeds = (other.batch * n / seconds for n, seconds in zip(new, other.seconds, strict=True))
        rates.append((label, other.batch, *speeds))
        curves[label] = _curve(other.seconds)
    notes = model_notes(each.model for each in found)
    if published:
        notes.append(f"Published: {LATENCY_SOURCE}; another device, and so no comparison of programs.")
        if length != LATENCY_LENGTH:
            notes.append(f"The published figures are of {LATENCY_LENGTH} tokens, ours of {length}.")
    columns = ("model and device", "batch", *(f"from {int(share * length)}" for share in SHARES))
    title = f"Seconds to reach {length} tokens"
    return Report(
        benchmark="latency",
        question=f"How many seconds to reach {length} tokens from 25, 50 and 75 % of them?",
        settings={"length": length, "rounds": rounds, **found[0].settings},
        tables=[Table(title, columns, rows), Table("Tokens a second, all rows together", columns, rates)],
        notes=notes,
        curves=Curves(title, "start, % of the length", "seconds", curves),
        results=[
            {
                "model": each.model.description,
                "batch": each.batch,
                "device": each.device,
                "starts": [int(share * length) for share in SHARES],
                "seconds": each.seconds,
                "tokens": each.tokens,
                "settings": each.settings,
            }
            for each in found
        ],
        machine=machine_facts(found[0].device),
    )


def _curve(seconds: Sequence[float]) -> list[tuple[float, float]]:
    return [(100 * share, each) for share, each in zip(SHARES, seconds, strict=True)]
