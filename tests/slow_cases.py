"""Parameters of which most run among the slow tests only."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], every: int) -> list[Any]:
    """*cases*, each a value or a tuple of values, as parameters; all but every *every*-th are marked slow."""
    return [
        case
        if number % every == 0
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
