"""A program run by two processes that share a model, as ``torchrun`` would start them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel


def written_by_ranks(program: str | None, model: PreTrainedModel, folder: Path) -> list[dict[str, Any]]:
    """
    Run *program* on two ranks, and return what each has written.

    Args:
        program: Script that takes *folder* with ``model`` in it, and writes ``RANK.json``.

        model: Model to save in *folder*.

        folder: An empty folder.
    """
    assert program is not None
    model.save_pretrained(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        processes = []
        for rank in (0, 1):
            out = stack.enter_context((folder / f"{rank}.out").open("w"))
            process = subprocess.Popen(
                [sys.executable, program, str(folder)],
                env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            process.wait(timeout=600)
    outputs = "\n".join((folder / f"{rank}.out").read_text() for rank in (0, 1))
    assert [0, 0] == [process.returncode for process in processes], outputs
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
