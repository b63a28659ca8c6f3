"""
Question: what does a forward take whose columns are mostly padding, next to one of tokens alone.

The last chunk of a prompt is mostly padding, and so is a batch of which most rows have ended.
"""

import argparse

from ..measuring.arguments import add_common, check_at_least, progress
from ..models.measured_model import add_model, models_of
from .forwards_in_turns import MAX_LENGTH, TimedForward, report_forwards

CHUNK, TOKENS = 64, (64, 32, 16, 8)
"""Columns of a prompt's chunk, and how many of them are tokens."""

ROWS, ACTIVE = 8, (8, 4, 2, 1)
"""Rows of a batch, and how many of them have a token."""

EIGHTH_GOAL = 0.5
"""Largest ratio of the time of a chunk with an eighth of tokens to that of a full one."""

_IN_A_ROW = 3


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
    goals = {narrow: EIGHTH_GOAL}
    chunks = [TimedForward(one_row, CHUNK, tokens, 0, goals.get(tokens)) for tokens in TOKENS]
    chunks.append(TimedForward(one_row, narrow, narrow, 0))
    batches = [TimedForward(several, 1, active, len(chunks)) for active in ACTIVE]
    question = "What does a forward take whose columns are mostly padding, next to one of tokens alone?"
    report_forwards(options, "padding", question, model, [*chunks, *batches], _IN_A_ROW)
