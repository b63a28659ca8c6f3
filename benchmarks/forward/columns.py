"""
Question: what do forwards of several columns, or of several rows, take next to one column of one row.

A verification of k draft tokens has k + 1 columns, and a batch a row for each text. Every column is scored.
"""

import argparse
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ...neuron_backend import CompiledDecoder
from ..measuring.arguments import add_common, check_at_least, progress
from ..measuring.machine import machine_facts
from ..measuring.report import Report, Threshold, finish
from ..measuring.tables import Spread, Table
from ..measuring.timing import median_ratio, milliseconds_in_turns
from ..models.measured_model import add_model, decoder_settings, device_name, models_of

POSITION, MAX_LENGTH = 100, 1024

COLUMN_GOALS = {5: 1.2, 9: 1.4}
"""Columns of one row, and the largest ratio of their time to one column's."""

ROWS, ROW_GOAL = 8, 2.0
"""Rows of one column, and the largest ratio of their time to one row's."""

_WARM_UP, _IN_A_ROW = 2, 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add_model(parser, "smollm2-135m")
    add_common(parser, rounds=15)


def run(options: argparse.Namespace) -> None:
    """Time all shapes in turns, and report."""
    check_at_least("rounds", options.rounds, 1)
    (model,) = models_of(options)
    widths = (1, *COLUMN_GOALS)
    progress(f"compiling for one row and for {ROWS}")
    one_row = model.decoder(1, MAX_LENGTH, widths, scored_width=max(widths))
    several = model.decoder(ROWS, MAX_LENGTH, (1,))
    shapes = [(one_row, width) for width in widths] + [(several, 1)]
    times = milliseconds_in_turns(
        [_forward(decoder, width) for decoder, width in shapes],
        options.rounds,
        warm_up=_WARM_UP,
        in_a_row=_IN_A_ROW,
    )
    ratios = [median_ratio(spent, times[0]) for spent in times]
    rows = [
        (decoder.shape.batch_size, width, str(Spread.of(spent)), ratio)
        for (decoder, width), spent, ratio in zip(shapes, times, ratios, strict=True)
    ]
    goals = [(f"{width} columns", goal) for width, goal in COLUMN_GOALS.items()]
    goals.append((f"{ROWS} rows", ROW_GOAL))
    report = Report(
        benchmark="columns",
        question="What do forwards of several columns, or of several rows, take next to one of one row?",
        settings={"model": model.description, "rounds": options.rounds, **decoder_settings(one_row)},
        tables=[
            Table(
                f"Milliseconds of a forward at position {POSITION}", ("rows", "columns", "ms", "ratio"), rows
            )
        ],
        thresholds=[
            Threshold(f"{what} against one column of one row", ratio, "<=", goal, "×")
            for (what, goal), ratio in zip(goals, ratios[1:], strict=True)
        ],
        results={"milliseconds": times},
        machine=machine_facts(device_name(one_row)),
    )
    finish(report, options.json)


def _forward(decoder: CompiledDecoder, width: int) -> Callable[[], Tensor]:
    rows = decoder.shape.batch_size
    ids = torch.full((rows, width), 7, dtype=torch.int64)
    return functools.partial(decoder.forward, ids, torch.full((rows,), POSITION))
