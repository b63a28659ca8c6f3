"""The examples in the docstrings."""

import doctest
import importlib
import pkgutil

import decodekit


def test_every_example_runs() -> None:
    """Doctests of every installed module."""
    names = [module.name for module in pkgutil.walk_packages(decodekit.__path__, "decodekit.")]
    ours = [
        n
        for n in names
        if n.split(".")[1]
        in {"benchmarks", "decoding", "processors", "speculation", "streaming", "neuron_backend", "testing"}
    ]
    results = [doctest.testmod(importlib.import_module(name)) for name in ours]

    assert len(ours) > 40
    assert sum(result.attempted for result in results) > 0
    assert 0 == sum(result.failed for result in results)
