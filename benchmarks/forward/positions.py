"""
Question: what does a token cost at position 100 of a decoder of 4,096 positions, next to one of 128.

Forwards of width 1 in turns, and a curve over the positions of the long decoder: a forward attends to the
smallest span that holds its tokens.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...neuron_backend import StaticDecoder
from ..measuring.arguments import add_common, add_plot, check_at_least, progress
from ..measuring.machine import machine_facts
from ..measuring.report import Curves, Report, Threshold, finish
from ..measuring.tables import Spread, Table
from ..measuring.timing import median_ratio, milliseconds_in_turns
from ..models.measured_model import add_model, decoder_settings, device_name, models_of

SHORT, LONG, POSITION = 128, 4096, 100
GOAL = 1.1
"""The largest ratio of the long decoder's time to the short one's."""

_WARM_UP, _IN_A_ROW = 3, 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add_model(parser, "smollm2-135m")
    parser.add_argument(
        "--long", type=int, default=LONG, metavar="N", help="positions of the longer one (%(default)s)"
    )
    add_common(parser, rounds=7)
    add_plot(parser)


def run(options: argparse.Namespace) -> None:
    """Time both decoders, and report."""
    check_at_least("long", options.long, SHORT + 1)
    check_at_least("rounds", options.rounds, 1)
    (model,) = models_of(options)
    progress(f"compiling for {SHORT} and {options.long} positions")
    short, long = (model.decoder(1, length, (1,)) for length in (SHORT, options.long))
    positions = sorted({POSITION, *(span - 1 for span in long.spans), *long.spans[:-1]})
    places = [(short, POSITION), *((long, position) for position in positions)]
    times = milliseconds_in_turns(
        [_forward(decoder, position) for decoder, position in places],
        options.rounds,
        warm_up=_WARM_UP,
        in_a_row=_IN_A_ROW,
    )
    same_position = times[1 + positions.index(POSITION)]
    rows: list[tuple[Any, ...]] = [
        (decoder.shape.max_length, position, str(Spread.of(spent)))
        for (decoder, position), spent in zip(places, times, strict=True)
    ]
    medians = [Spread.of(spent).median for spent in times]
    report = Report(
        benchmark="positions",
        question=f"What does a token cost at position {POSITION} of {options.long} slots, next to {SHORT}?",
        settings={"model": model.description, "rounds": options.rounds, **decoder_settings(long)},
        tables=[Table("Milliseconds of a forward of width 1", ("positions", "position", "ms"), rows)],
        thresholds=[
            Threshold(
                f"position {POSITION} of {options.long} slots against {SHORT} slots",
                median_ratio(same_position, times[0]),
                "<=",
                GOAL,
                "×",
            )
        ],
        curves=Curves(
            "A token by its position",
            "position",
            "ms",
            {
                f"{options.long} positions": list(zip(positions, medians[1:], strict=True)),
                f"{SHORT} positions": [(POSITION, medians[0])],
            },
        ),
        notes=[f"Spans of the long decoder: {', '.join(map(str, long.spans))}."],
        results={
            "places": [row[:2] for row in rows],
            "milliseconds": times,
            "ratio": [b / a for a, b in zip(times[0], same_position, strict=True)],
        },
        machine=machine_facts(device_name(long)),
    )
    finish(report, options.json, options.plot)


def _forward(decoder: StaticDecoder, position: int) -> Callable[[], Tensor]:
    ids = torch.zeros(1, 1, dtype=torch.int64)
    return functools.partial(decoder.forward, ids, torch.tensor([position]))
