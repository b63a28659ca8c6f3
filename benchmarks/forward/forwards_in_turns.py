"""Forwards of several shapes, each next to one of them."""

import argparse
from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from ...neuron_backend import CompiledDecoder
from ..measuring.machine import machine_facts
from ..measuring.report import Report, Threshold, finish
from ..measuring.tables import Spread, Table
from ..measuring.timing import median_ratio, milliseconds_in_turns
from ..models.measured_model import ModelUnderTest, decoder_settings, device_name

POSITION, MAX_LENGTH = 100, 1024

_WARM_UP = 2


@attrs.frozen(eq=False)
class TimedForward:
    """A forward at :data:`POSITION`, and what it is compared with."""

    decoder: CompiledDecoder
    width: int

    tokens: int
    """Of all rows together: the last columns of one row, or the last rows. All others are padding."""

    reference: int
    """The number of the forward that it is compared with."""

    goal: float | None = None
    """The largest ratio of their times."""

    _ids: Tensor = attrs.field(init=False)
    _start: Tensor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make what is fed."""
        rows = self.decoder.shape.batch_size
        ids = torch.full((rows, self.width), -1)
        ids.flatten()[-self.tokens :] = 7
        object.__setattr__(self, "_ids", ids)
        object.__setattr__(self, "_start", torch.full((rows,), POSITION))

    def __call__(self) -> Tensor:
        """The logits of the forward."""
        return self.decoder.forward(self._ids, self._start)

    def __str__(self) -> str:
        rows, columns = self.decoder.shape.batch_size, self.width
        count, what = (columns, "column") if rows == 1 else (rows, "row")
        plural = "s" * (count > 1)
        return f"{count} {what}{plural} with {self.tokens} token" + "s" * (self.tokens > 1)


def report_forwards(
    options: argparse.Namespace,
    benchmark: str,
    question: str,
    model: ModelUnderTest,
    forwards: Sequence[TimedForward],
    in_a_row: int,
) -> None:
    """Time *forwards* in turns, *in_a_row* of each, and report their ratios to their references."""
    times = milliseconds_in_turns(forwards, options.rounds, warm_up=_WARM_UP, in_a_row=in_a_row)
    references = [times[each.reference] for each in forwards]
    ratios = [median_ratio(spent, beside) for spent, beside in zip(times, references, strict=True)]
    rows = [
        (each.decoder.shape.batch_size, each.width, each.tokens, str(Spread.of(spent)), ratio)
        for each, spent, ratio in zip(forwards, times, ratios, strict=True)
    ]
    columns = ("rows", "columns", "tokens", "ms", "ratio")
    decoder = forwards[0].decoder
    report = Report(
        benchmark=benchmark,
        question=question,
        settings={"model": model.description, "rounds": options.rounds, **decoder_settings(decoder)},
        tables=[Table(f"Milliseconds of a forward at position {POSITION}", columns, rows)],
        thresholds=[
            Threshold(f"{each} against {forwards[each.reference]}", ratio, "<=", each.goal, "×")
            for each, ratio in zip(forwards, ratios, strict=True)
            if each.goal is not None
        ],
        results={"milliseconds": times},
        machine=machine_facts(device_name(decoder)),
    )
    finish(report, options.json)
