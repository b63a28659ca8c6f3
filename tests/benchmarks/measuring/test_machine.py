"""Description of the machine."""

from pathlib import Path

import pytest

from decodekit.benchmarks.measuring import machine
from decodekit.benchmarks.measuring.machine import machine_facts, processor_name, versions


def test_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device beside the processor; OpenMP's settings."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    facts = machine_facts("a card")

    assert "a card" == facts["device"]
    assert "10000" == facts["GOMP_SPINCOUNT"]
    assert facts["processor"] == machine_facts()["device"]
    assert int(facts["cores"]) >= 1


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (
            "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\n"
            "processor\t: 1\nmodel\t\t: 3\n",
            "AMD EPYC (family 26, model 2)",
        ),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "aarch64"),
        (None, "aarch64"),
    ],
    ids=["x86", "aarch64", "no file"],
)
def test_processor_name(
    cpuinfo: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first processor's name with family and model; the machine's where the system names none."""
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")

    assert name == processor_name()


def test_versions() -> None:
    """Versions of installed packages only."""
    found = versions(["pytest", "no-such-package"])

    assert pytest.__version__ == found["pytest"]
    assert {"Python", "decodekit", "torch", "transformers", "numpy", "pytest"} == set(found)
