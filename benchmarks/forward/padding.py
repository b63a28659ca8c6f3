"""
Question: what does a forward take whose columns are mostly padding, next to one of tokens alone.

The last chunk of a prompt is mostly padding, and so is a batch of which most rows have ended.
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

CHUNK, TOKENS = 64, (64, 32, 16, 8)
"""Columns of a prompt's chunk, and how many of them are tokens."""

ROWS, ACTIVE = 8, (8, 4, 2, 1)
"""Rows of a batch, and how many of them have a token."""

EIGHTH_GOAL = 0.5
"""Largest ratio of the time of a chunk with an eighth of tokens to that of a full one."""

_WARM_UP, _IN_A_ROW = 2, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add_model(parser, "smollm2-135m")
    add_common(parser, rounds=15)


def run(options: argparse.Namespace) -> None:
    """Time all forwards in turns, and report."""
    check_at_least("rounds", options.rounds, 1)
    (model,) = models_of(options)
    progress(f"compiling for one row and for {ROWS}")
    narrow = TOKENS[-1]
    one_row = model.decoder(1, MAX_LENGTH, (1, narrow, CHUNK), scored_width=1)
    several = model.decoder(ROWS, MAX_LENGTH, (1,))
    chunks = [(one_row, CHUNK, tokens) for tokens in TOKENS] + [(one_row, narrow, narrow)]
    shapes = chunks + [(several, 1, active) for active in ACTIVE]
    times = milliseconds_in_turns(
        [_forward(*shape) for shape in shapes], options.rounds, warm_up=_WARM_UP, in_a_row=_IN_A_ROW
    )
    whole = [times[0]] * len(chunks) + [times[len(chunks)]] * len(ACTIVE)
    ratios = [median_ratio(spent, of) for spent, of in zip(times, whole, strict=True)]
    rows = [
        (decoder.shape.batch_size, width, tokens, str(Spread.of(spent)), ratio)
        for (decoder, width, tokens), spent, ratio in zip(shapes, times, ratios, strict=True)
    ]
    report = Report(
        benchmark="padding",
        question="What does a forward take whose columns are mostly padding, next to one of tokens alone?",
        settings={"model": model.description, "rounds": options.rounds, **decoder_settings(one_row)},
        tables=[
            Table(
                f"Milliseconds of a forward at position {POSITION}",
                ("rows", "columns", "tokens", "ms", "ratio"),
                rows,
            )
        ],
        thresholds=[
            Threshold(
                f"{CHUNK} columns, {narrow} of them tokens, against {CHUNK} tokens",
                ratios[len(TOKENS) - 1],
                "<=",
                EIGHTH_GOAL,
                "×",
            )
        ],
        results={"milliseconds": times},
        machine=machine_facts(device_name(one_row)),
    )
    finish(report, options.json)


def _forward(decoder: CompiledDecoder, width: int, tokens: int) -> Callable[[], Tensor]:
    """A forward of *tokens*: the last columns of a chunk, or the last rows."""
    rows = decoder.shape.batch_size
    ids = torch.full((rows, width), -1)
    ids.flatten()[-tokens:] = 7
    return functools.partial(decoder.forward, ids, torch.full((rows,), POSITION))
