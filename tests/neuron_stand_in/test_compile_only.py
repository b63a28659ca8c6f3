"""``scripts/compile-only``, with a stand-in for the compiler."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from decodekit.neuron_backend.models.early_exit import first_layers

pytestmark = pytest.mark.stand_in

SCRIPT = Path(__file__).parents[2] / "scripts" / "compile-only"
SHAPE = ["--length", "32", "--widths", "1", "5", "--spans", "16", "32", "--platform", "trn1"]
PLAIN = {f"width_{width}_span_{span}" for width in (1, 5) for span in (16, 32)}


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory) -> str:
    """The folder of a model of one layer."""
    folder = tmp_path_factory.mktemp("model")
    first_layers(tiny_model("llama"), 1).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def compile_only(model, modules, tmp_path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs the script on the model, with a neuronx-cc that is installed."""
    facts = tmp_path / "neuronx_cc-2.21.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: neuronx-cc\nVersion: 2.21.0\n")

    def run(*arguments: str, failing: str = "") -> "subprocess.CompletedProcess[str]":
        path = os.pathsep.join([str(modules), str(tmp_path), os.environ.get("PYTHONPATH", "")])
        variables = {**os.environ, "PYTHONPATH": path, "NEURON_STAND_IN_FAILING": failing}
        command = [sys.executable, str(SCRIPT), model, *SHAPE, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)

    return run


def table(output: str) -> dict[str, list[str]]:
    """Result, seconds and size by program."""
    rows = [line.split() for line in output.splitlines()[1:]]
    return {row[0]: row[1:] for row in rows if "_span_" in row[0]}


def test_every_program_is_compiled(compile_only) -> None:
    """Each with its time and size; the text says for which platform."""
    done = compile_only("--tree-widths", "3")

    found = table(done.stdout)
    assert 0 == done.returncode, done.stderr
    assert PLAIN | {"tree_3_span_16", "tree_3_span_32"} == set(found)
    assert all(
        result == "compiled" and float(seconds) >= 0 < float(size) for result, seconds, size in found.values()
    )
    assert done.stdout.endswith("all 6 programs were compiled for trn1\n")


def test_programs_of_single_rows_are_compiled(compile_only) -> None:
    """Forwards of one row and copies, if they are asked for."""
    done = compile_only("--batch", "2", "--row-widths", "5", "--copies-rows")

    assert 0 == done.returncode, done.stderr
    rows = {f"{kind}_span_{span}" for kind in ("row_5", "copy_1") for span in (16, 32)}
    assert PLAIN | rows == set(table(done.stdout))


def test_one_that_fails_leaves_the_others(compile_only) -> None:
    """The table has all of them, the message names the one that failed, and the status is 1."""
    done = compile_only(failing="width_5_span_16")

    results = {name: row[0] for name, row in table(done.stdout).items()}
    assert {**dict.fromkeys(PLAIN, "compiled"), "width_5_span_16": "failed"} == results
    assert 1 == done.returncode
    assert "all 4 programs: got 1 that failed: width_5_span_16: Compilation failed" in done.stderr


def test_programs_that_sample_are_compiled(compile_only) -> None:
    """Beside those that do not."""
    done = compile_only("--temp", "0.8", "--top-k", "9")

    assert 0 == done.returncode, done.stderr
    assert 8 == len(table(done.stdout))
    assert 4 == sum(name.startswith("fused_") for name in table(done.stdout))


def test_the_single_program_is_compiled(compile_only) -> None:
    """Without NxD, at the widest width."""
    done = compile_only("--way", "trace")

    assert 0 == done.returncode, done.stderr
    assert ["width_5_span_32"] == list(table(done.stdout))
    assert float(table(done.stdout)["width_5_span_32"][2]) > 0
