"""
Question: how long does a token take beside one busy process per core, next to a quiet machine.

Forwards of width 1, one by one. A virtual machine may be stopped by its host meanwhile: a forward during
which /proc/stat counts stolen time is left out of the largest.
"""

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import torch

from ..measuring.arguments import add_common, check_at_least, progress
from ..measuring.busy_processes import busy_processes
from ..measuring.machine import cores, machine_facts
from ..measuring.report import Report, Threshold, finish
from ..measuring.tables import Table
from ..models.measured_model import add_model, decoder_settings, device_name, models_of

POSITIONS, POSITION = 512, 100

GOAL_RATIO, GOAL_MILLISECONDS = 5.0, 50.0
"""The largest 99th percentile in quiet medians, and the largest forward."""

_STATISTICS = Path("/proc/stat")
_WARM_UP = 20


@attrs.frozen
class Forward:
    """One timed forward."""

    milliseconds: float
    stolen: int
    """Ticks that the host took from this machine meanwhile."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add_model(parser, "smollm2-135m")
    parser.add_argument(
        "--forwards", type=int, default=100, metavar="N", help="forwards of a round (%(default)s)"
    )
    parser.add_argument("--busy", type=int, default=cores(), metavar="N", help="busy processes (%(default)s)")
    add_common(parser, rounds=3)


def run(options: argparse.Namespace) -> None:
    """Time forwards on a quiet machine and beside busy processes in turns, and report."""
    check_at_least("forwards", options.forwards, 1)
    check_at_least("busy", options.busy, 1)
    check_at_least("rounds", options.rounds, 1)
    (model,) = models_of(options)
    progress("compiling")
    decoder = model.decoder(1, POSITIONS, (1,))
    ids, position = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([POSITION])
    forward = functools.partial(decoder.forward, ids, position)
    quiet: list[Forward] = []
    busy: list[Forward] = []
    for _ in range(options.rounds):
        quiet += timed(forward, options.forwards)
        with busy_processes(options.busy):
            busy += timed(forward, options.forwards)
    median = percentile(quiet, 50)
    report = Report(
        benchmark="busy",
        question=f"How long does a token take beside {options.busy} busy processes?",
        settings={"model": model.description, "rounds": options.rounds, **decoder_settings(decoder)},
        tables=[
            Table(
                "Milliseconds of a forward of width 1",
                ("machine", "forwards", "median", "99th percentile", "largest", "stolen ticks"),
                [_row("quiet", quiet), _row(f"{options.busy} busy processes", busy)],
            )
        ],
        thresholds=[
            Threshold(
                "99th percentile, in quiet medians", percentile(busy, 99) / median, "<=", GOAL_RATIO, "×"
            ),
            *(
                Threshold("largest without stolen time", found, "<=", GOAL_MILLISECONDS, " ms")
                for found in [largest(busy)]
                if found is not None
            ),
        ],
        notes=["Time was stolen of every forward beside busy processes: the largest is not judged."]
        * (largest(busy) is None),
        results={
            "quiet": [attrs.astuple(forward) for forward in quiet],
            "busy": [attrs.astuple(forward) for forward in busy],
        },
        machine=machine_facts(device_name(decoder)),
    )
    finish(report, options.json)


def timed(forward: Callable[[], object], count: int) -> list[Forward]:
    """Time *count* forwards, after some that are not counted."""
    for _ in range(_WARM_UP):
        forward()
    return [_timed(forward) for _ in range(count)]


def _timed(forward: Callable[[], object]) -> Forward:
    stolen, start = stolen_ticks(), time.perf_counter()
    forward()
    spent = 1e3 * (time.perf_counter() - start)
    return Forward(spent, stolen_ticks() - stolen)


def stolen_ticks() -> int:
    """Clock ticks that the host has taken from this machine; 0 where that is not known."""
    if not _STATISTICS.exists():
        return 0
    # "cpu", then user, nice, system, idle, iowait, irq, softirq, steal.
    return int(_STATISTICS.read_text().partition("\n")[0].split()[8])


def percentile(forwards: Sequence[Forward], percent: int) -> float:
    """
    The smallest time that *percent* of *forwards* do not exceed.

    >>> percentile([Forward(4.0, 0), Forward(1.0, 0), Forward(2.0, 0)], 50)
    2.0
    """
    times = sorted(forward.milliseconds for forward in forwards)
    return times[-(-percent * len(times) // 100) - 1]


def largest(forwards: Sequence[Forward]) -> float | None:
    """
    The largest time of a forward without stolen time; None if there is none.

    >>> largest([Forward(70.0, 3), Forward(20.0, 0)])
    20.0
    """
    return max((forward.milliseconds for forward in forwards if not forward.stolen), default=None)


def _row(name: str, forwards: Sequence[Forward]) -> tuple[object, ...]:
    stolen = sum(forward.stolen for forward in forwards)
    times = (percentile(forwards, 50), percentile(forwards, 99), largest(forwards))
    return (name, len(forwards), *times, stolen)
