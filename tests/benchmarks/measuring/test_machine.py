"""Description of the machine."""

import pytest

from decodekit.benchmarks.measuring.machine import machine_facts, versions


def test_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device beside the processor; OpenMP's settings."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    facts = machine_facts("a card")

    assert "a card" == facts["device"]
    assert "10000" == facts["GOMP_SPINCOUNT"]
    assert facts["processor"] == machine_facts()["device"]
    assert int(facts["cores"]) >= 1


def test_versions() -> None:
    """Versions of installed packages only."""
    found = versions(["pytest", "no-such-package"])

    assert pytest.__version__ == found["pytest"]
    assert {"Python", "decodekit", "torch", "transformers", "numpy", "pytest"} == set(found)
