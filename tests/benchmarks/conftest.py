"""The scripts as modules, imported beside the ones that they use."""

import importlib
import pathlib
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def script() -> Iterator[Callable[[str], ModuleType]]:
    """By the name of its file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module
