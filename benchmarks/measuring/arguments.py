"""Command-line arguments that benchmarks share, and checks of them."""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements as JSON")


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add ``--plot``."""
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the curves (needs matplotlib)")


def add_common(parser: argparse.ArgumentParser, *, rounds: int, threads: int = 2) -> None:
    """Add ``--threads``, ``--rounds`` and ``--json``."""
    parser.add_argument("--threads", type=int, default=threads, metavar="N", help="(%(default)s)")
    help_rounds = "counted rounds (%(default)s)"
    parser.add_argument("--rounds", type=int, default=rounds, metavar="N", help=help_rounds)
    add_json(parser)


def check_at_least(name: str, value: int, least: int) -> None:
    """
    Check an argument.

    Raises:
        ValueError: *value* is below *least*.
    """
    if value < least:
        raise ValueError(f"{name!r} must be >= {least}: got {value}")


def check_temperatures(name: str, values: Sequence[float]) -> None:
    """
    Check temperatures, of which 0 is greedy decoding.

    Raises:
        ValueError: One is negative, infinite or not a number.
    """
    for value in values:
        if not 0 <= value < math.inf:
            raise ValueError(f"{name!r} must be finite and >= 0: got {value}")


def progress(line: str) -> None:
    """Print a line of progress on standard error."""
    print(line, file=sys.stderr, flush=True)
