"""Failures of neuronx-cc while weights are laid out, without NxD: its functions are replaced."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from decodekit.neuron_backend.progress import Stage
from decodekit.neuron_backend.targets.neuron import program_compiler
from decodekit.neuron_backend.targets.neuron.layout_optimization import LAYOUT, NEFF, WRAPPED
from decodekit.neuron_backend.targets.neuron.program_compiler import CompiledFiles, ProgramCompiler


def trace() -> Any:
    """What is read of NxD's ``TraceArtifacts``."""
    hlo = SimpleNamespace(SerializeToString=lambda deterministic: b"graph")
    return SimpleNamespace(hlo=hlo, weight_name_to_idx={"weight": 0})


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> "tuple[ProgramCompiler, dict[str, Any], list[Stage]]":
    """A compiler that keeps nothing, what it reports, and its stages."""
    files = {NEFF: b"neff", WRAPPED: b"wrapped"}
    monkeypatch.setattr(program_compiler, "mark_weights", lambda trace: None)
    monkeypatch.setattr(program_compiler, "compile_priority", lambda *given: files)
    monkeypatch.setattr(program_compiler, "choice_in", lambda folder, files: None)
    monkeypatch.setattr(program_compiler, "apply_layout", lambda *given: None)
    monkeypatch.setattr(ProgramCompiler, "_neff", lambda self, name, trace: {NEFF: b"neff"})
    reported: dict[str, Any] = {}
    stages: list[Stage] = []
    made = ProgramCompiler("", reuse=False, report=reported.__setitem__, progress=stages.append)
    return made, reported, stages


def test_a_layout_that_is_compiled_is_reported(
    compiler: "tuple[ProgramCompiler, dict[str, Any], list[Stage]]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every other program."""
    made, reported, stages = compiler
    monkeypatch.setattr(program_compiler, "compile_layout", lambda *given: {"neff_filepath": b"layout"})

    found = made.compile({"one": trace(), "five": trace()}, priority="one")

    assert {"one", "five", LAYOUT} == set(found) == set(reported)
    assert all(isinstance(result, CompiledFiles) for result in reported.values())
    assert "compiling the layout of weights" in [stage.name for stage in stages]


def test_a_layout_that_fails_is_reported(
    compiler: "tuple[ProgramCompiler, dict[str, Any], list[Stage]]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the error of every other failure; the others would be compiled for nothing."""
    made, reported, stages = compiler

    def fail(trace: Any, chosen: Any, arguments: str, workdir: Path | None) -> dict[str, bytes]:
        raise OSError("neuronx-cc was killed")

    monkeypatch.setattr(program_compiler, "compile_layout", fail)

    with pytest.raises(RuntimeError, match=f"1 that failed, and the others were not tried: {LAYOUT}: neuro"):
        made.compile({"one": trace(), "five": trace()}, priority="one")

    assert {"one", LAYOUT} == set(reported)
    assert isinstance(reported[LAYOUT], OSError)
    assert [True] == [
        stage.failed for stage in stages if "layout" in stage.name and stage.seconds is not None
    ]
