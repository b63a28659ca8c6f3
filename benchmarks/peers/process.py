"""A peer's process, seen from the process that compares."""

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


class AbsentPeerError(Exception):
    """A package that a peer needs is not installed; the message names the package."""


class PeerError(ChildProcessError):
    """A peer's process ended too early; its own messages are on standard error."""


@attrs.frozen(eq=False)
class PeerProcess:
    """A running peer that is ready for requests."""

    name: str
    process: "subprocess.Popen[str]"
    facts: Mapping[str, Any]
    """Versions and settings, as the peer reports them."""

    @classmethod
    def start(
        cls,
        name: str,
        peer: str | Path,
        specification: Mapping[str, Any],
        *,
        threads: int,
        python: str = sys.executable,
    ) -> "PeerProcess":
        """
        Start a process, and wait until it is ready.

        Args:
            name: The name in tables.

            peer: A module of decodekit's, or a file that runs without decodekit.

            specification: Passed to the peer as JSON.

            threads: Number of OpenMP threads.

            python: The interpreter.

        Raises:
            AbsentPeerError: A package that it needs is not installed.

            PeerError: It failed.
        """
        process = subprocess.Popen(
            # -P keeps the script's folder off the import path: its files must not shadow other modules.
            [python, "-P", str(_SERVING), str(peer), json.dumps(specification)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        try:
            message = _answer(name, process)
            if "absent" in message:
                raise AbsentPeerError(message["absent"])
        except BaseException:
            _end(process)
            raise
        return cls(name, process, message["facts"])

    def ask(self, do: str, **arguments: Any) -> Any:
        """
        Send one request and return the answer.

        Raises:
            PeerError: It failed.
        """
        requests = _pipe(self.process.stdin)
        try:
            print(json.dumps({"do": do, **arguments}), file=requests, flush=True)
        except BrokenPipeError:
            raise PeerError(f"{self.name} has ended with status {self.process.wait()}") from None
        return _answer(self.name, self.process)

    def end(self) -> None:
        """End the process."""
        _end(self.process)


def _answer(name: str, process: "subprocess.Popen[str]") -> Any:
    line = _pipe(process.stdout).readline()
    if not line:
        raise PeerError(f"{name} has ended with status {process.wait()}")
    return json.loads(line)


def _end(process: "subprocess.Popen[str]") -> None:
    # Closing its input ends its loop; a process that has ended already breaks the pipe.
    with contextlib.suppress(BrokenPipeError):
        _pipe(process.stdin).close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _pipe(process.stdout).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # both were requested
    return pipe
