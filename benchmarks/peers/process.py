"""A contender, seen from the process that holds the comparison."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import attrs

_SERVING = Path(__file__).with_name("serving.py")


class AbsentContenderError(Exception):
    """A package that a contender needs is not installed; the message names it."""


class ContenderError(ChildProcessError):
    """A contender's process has ended before its time; what it said stands above."""


@attrs.frozen(eq=False)
class ContenderProcess:
    """One contender, ready to run."""

    name: str
    process: "subprocess.Popen[str]"
    facts: Mapping[str, Any]
    """Versions and whatever else it says of itself."""

    @classmethod
    def start(
        cls,
        name: str,
        contender: str | Path,
        specification: Mapping[str, Any],
        *,
        threads: int,
        python: str = sys.executable,
    ) -> "ContenderProcess":
        """
        Start it, and wait until it is ready.

        Args:
            name: What it is called in tables.

            contender: A module of decodekit's, or a file that runs without decodekit.

            specification: For it; as JSON has it.

            threads: How many OpenMP is to use.

            python: The interpreter.

        Raises:
            AbsentContenderError: Something that it needs is not installed.

            ContenderError: It has failed.
        """
        process = subprocess.Popen(
            # Not the script's own folder: its modules are named like none, but who knows of others'.
            [python, "-P", str(_SERVING), str(contender), json.dumps(specification)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        try:
            said = _answer(name, process)
            if "absent" in said:
                raise AbsentContenderError(said["absent"])
        except BaseException:
            _end(process)
            raise
        return cls(name, process, said["facts"])

    def ask(self, do: str, **arguments: Any) -> Any:
        """
        One request, and its answer.

        Raises:
            ContenderError: It has failed.
        """
        requests = _pipe(self.process.stdin)
        try:
            print(json.dumps({"do": do, **arguments}), file=requests, flush=True)
        except BrokenPipeError:
            raise ContenderError(f"{self.name} has ended with status {self.process.wait()}") from None
        return _answer(self.name, self.process)

    def end(self) -> None:
        """Let it go."""
        _end(self.process)


def _answer(name: str, process: "subprocess.Popen[str]") -> Any:
    line = _pipe(process.stdout).readline()
    if not line:
        raise ContenderError(f"{name} has ended with status {process.wait()}")
    return json.loads(line)


def _end(process: "subprocess.Popen[str]") -> None:
    # No more requests: it leaves its loop. One that has ended cannot take what was not sent.
    with contextlib.suppress(BrokenPipeError):
        _pipe(process.stdin).close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _pipe(process.stdout).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # both are asked for
    return pipe
