"""Description of the machine."""

import os
from pathlib import Path

import pytest

import decodekit
from decodekit.benchmarks.measuring import machine
from decodekit.benchmarks.measuring.machine import backend_digest, machine_facts, processor_name, versions


def test_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device beside the processor; OpenMP's settings."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    monkeypatch.setenv("DECODEKIT_MAX_CPU_ISA", "avx2")
    facts = machine_facts("a card")

    assert "a card" == facts["device"]
    assert "10000" == facts["GOMP_SPINCOUNT"]
    assert "avx2" == facts["DECODEKIT_MAX_CPU_ISA"]
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


def test_the_load_is_that_before_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the benchmark itself."""
    before = machine_facts()["load_average"]
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))

    assert before == machine_facts()["load_average"]


@pytest.mark.parametrize("variable", ["DECODEKIT_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "CXX"])
def test_other_programs_have_another_digest(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under another limit of the instruction sets, and with another compiler."""
    monkeypatch.delenv(variable, raising=False)
    before = backend_digest()
    monkeypatch.setenv(variable, "AVX2")

    assert before != backend_digest()


def test_another_transformers_has_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module of the model was compiled."""
    before = backend_digest()
    original = machine.version
    monkeypatch.setattr(
        machine, "version", lambda name: "5.0.0" if name == "transformers" else original(name)
    )

    assert before != backend_digest()


def test_versions() -> None:
    """Versions of installed packages only."""
    found = versions(["pytest", "no-such-package"])

    assert pytest.__version__ == found["pytest"]
    assert decodekit.__version__ == found["decodekit"]
    assert {"Python", "decodekit", "torch", "transformers", "numpy", "pytest"} == set(found)
