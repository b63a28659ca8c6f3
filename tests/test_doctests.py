"""The examples in the docstrings."""

import doctest
import importlib
import pkgutil

import decodekit


def test_every_example_runs() -> None:
    """Doctests of every installed module."""
    names = [module.name for module in pkgutil.walk_packages(decodekit.__path__, "decodekit.")]
    # A checkout beside the installed package has these too.
    ours = [name for name in names if name.split(".")[1] not in {"__main__", "examples", "tests", "build"}]
    results = [doctest.testmod(importlib.import_module(name)) for name in ours]

    assert {"benchmarks", "decoding", "pretrained", "testing"} < {name.split(".")[1] for name in ours}
    assert sum(result.attempted for result in results) > 0
    assert 0 == sum(result.failed for result in results)
