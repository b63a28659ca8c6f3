"""The example under torchrun."""

import os
import pathlib
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "tensor_parallel.py"


def printed(launcher: list[str]) -> str:
    """What the example prints, started so."""
    options = ["--target", "eager", "--dtype", "float64", "--max-tokens", "24"]
    command = [sys.executable, *launcher, str(EXAMPLE), *options]
    run = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )

    assert run.returncode == 0, run.stderr
    return run.stdout


def test_two_processes_write_the_text_of_one() -> None:
    """Once, from the first of them; and each has half of the heads."""
    text, _, facts = printed([]).rstrip().rpartition("\n")
    two = printed(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"])

    assert text.startswith("def main(")
    assert facts == "1 processes, target eager, 2 key heads in each"
    assert two == f"{text}\n2 processes, target eager, 1 key heads in each\n"
