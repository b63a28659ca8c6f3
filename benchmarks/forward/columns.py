"""
Question: what do forwards of several columns, or of several rows, take next to one column of one row.

A verification of k draft tokens has k + 1 columns, and a batch a row for each text. Every column is scored.
"""

import argparse

from ..measuring.arguments import add_common, check_at_least, progress
from ..models.measured_model import add_model, models_of
from .forwards_in_turns import MAX_LENGTH, TimedForward, report_forwards

COLUMN_GOALS = {5: 1.2, 9: 1.4}
"""Columns of one row, and the largest ratio of their time to one column's."""

ROWS, ROW_GOAL = 8, 2.0
"""Rows of one column, and the largest ratio of their time to one row's."""

_IN_A_ROW = 10


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
    forwards = [TimedForward(one_row, width, width, 0, COLUMN_GOALS.get(width)) for width in widths]
    forwards.append(TimedForward(several, 1, ROWS, 0, ROW_GOAL))
    question = "What do forwards of several columns, or of several rows, take next to one of one row?"
    report_forwards(options, "columns", question, model, forwards, _IN_A_ROW)
