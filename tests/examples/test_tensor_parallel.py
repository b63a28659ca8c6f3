"""The example under torchrun."""

import os
import pathlib
import runpy
import subprocess
import sys

import pytest

EXAMPLE = str(pathlib.Path(__file__).parents[2] / "examples" / "tensor_parallel.py")
OPTIONS = ("--target", "eager", "--dtype", "float64", "--max-tokens", "24")


@pytest.mark.slow
def test_two_processes_write_the_text_of_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first process prints, and each has half of the heads."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    two = subprocess.run(
        [*torchrun, EXAMPLE, *OPTIONS],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    monkeypatch.setattr(sys, "argv", [EXAMPLE, *OPTIONS])
    runpy.run_path(EXAMPLE, run_name="__main__")
    text, _, facts = capsys.readouterr().out.rstrip().rpartition("\n")

    assert text.startswith("def main(")
    assert facts == "1 processes, target eager, 2 key heads in each"
    assert two.stdout == f"{text}\n2 processes, target eager, 1 key heads in each\n", two.stderr


def test_a_temperature_of_0_is_greedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the seed."""
    texts = set()
    for seed in ("1", "2"):
        monkeypatch.setattr(sys, "argv", [EXAMPLE, *OPTIONS, "--temp", "0", "--seed", seed])
        runpy.run_path(EXAMPLE, run_name="__main__")
        texts.add(capsys.readouterr().out)

    assert 1 == len(texts)
