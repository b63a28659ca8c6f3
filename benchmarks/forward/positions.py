"""
Question: what does a token cost at position 100 of a decoder of 4,096 slots, next to one of 128.

Forwards of one column, alternately, and a curve over the positions of the long one: a forward
attends to the smallest span that holds its tokens.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..neuron_backend import StaticDecoder
from .machine import machine_facts
from .report import Bar, Curves, Report, Spread, Table
from .subject import Subject, decoder_settings, device_name

SHORT, LONG, POSITION = 128, 4096, 100
GOAL = 1.1
"""Times the short one's, at most."""

_IN_A_ROW, _UNCOUNTED = 20, 3


def positions(
    subject: Subject,
    rounds: int,
    long: int = LONG,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """
    Time both decoders.

    Args:
        subject: Compiled twice.

        rounds: Of some forwards of each.

        long: Slots of the longer one, more than 128.

        progress: Called with a line now and then.

    Raises:
        ValueError: An argument breaks its rule.
    """
    if long <= SHORT:
        raise ValueError(f"'long' must be > {SHORT}: got {long}")
    if rounds < 1:
        raise ValueError(f"'rounds' must be >= 1: got {rounds}")
    progress(f"compiling for {SHORT} and {long} slots")
    short, wide = (subject.decoder(1, length, (1,)) for length in (SHORT, long))
    curve = sorted({POSITION, *(span - 1 for span in wide.spans), *(span for span in wide.spans[:-1])})
    places = [(short, POSITION), *((wide, position) for position in curve)]
    times = milliseconds(places, rounds)
    ratio = [b / a for a, b in zip(times[0], times[1 + curve.index(POSITION)], strict=True)]
    rows: list[tuple[Any, ...]] = [
        (decoder.shape.max_length, position, str(Spread.of(spent)))
        for (decoder, position), spent in zip(places, times, strict=True)
    ]
    return Report(
        benchmark="positions",
        question=f"What does a token cost at position {POSITION} of {long} slots, next to {SHORT} slots?",
        settings={"model": subject.description, "rounds": rounds, **decoder_settings(wide)},
        tables=[Table("Milliseconds of a forward of one column", ("slots", "position", "ms"), rows)],
        bars=[
            Bar(
                f"position {POSITION} of {long} slots against {SHORT} slots",
                Spread.of(ratio).median,
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
                f"{long} slots": [
                    (position, Spread.of(spent).median)
                    for position, spent in zip(curve, times[1:], strict=True)
                ],
                f"{SHORT} slots": [(POSITION, Spread.of(times[0]).median)],
            },
        ),
        notes=[f"The spans of the long one: {', '.join(map(str, wide.spans))}."],
        results={"places": [row[:2] for row in rows], "milliseconds": times, "ratio": ratio},
        machine=machine_facts(device_name(wide)),
    )


def milliseconds(places: Sequence[tuple[StaticDecoder, int]], rounds: int) -> list[list[float]]:
    """Of each place a number a round: the median of some forwards in a row, the first few not counted."""
    ids = torch.zeros(1, 1, dtype=torch.int64)
    times: list[list[float]] = [[] for _ in places]
    for _ in range(rounds):
        for (decoder, position), spent in zip(places, times, strict=True):
            start, few = torch.tensor([position]), []
            for _ in range(_UNCOUNTED + _IN_A_ROW):
                began = time.perf_counter()
                decoder.forward(ids, start)
                few.append(1e3 * (time.perf_counter() - began))
            spent.append(Spread.of(few[_UNCOUNTED:]).median)
    return times
