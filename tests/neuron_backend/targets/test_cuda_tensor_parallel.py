"""The target for CUDA over two processes with gloo and stand-ins for a GPU, against one process."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import StaticDecoder

from . import cuda_ranks_program


@pytest.fixture(scope="module")
def found(
    tiny_model: Callable[..., PreTrainedModel], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each rank has written."""
    folder = tmp_path_factory.mktemp("ranks")
    tiny_model("llama").save_pretrained(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        processes = []
        for rank in (0, 1):
            out = stack.enter_context((folder / f"{rank}.out").open("w"))
            process = subprocess.Popen(
                [sys.executable, cuda_ranks_program.__file__, str(folder)],
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


def test_the_text_is_one_processes(
    found: list[dict[str, Any]], tiny_model: Callable[..., PreTrainedModel]
) -> None:
    """Greedy, sampled by the program, and after loading; on both ranks, each with half of the heads."""
    decoder = StaticDecoder(tiny_model("llama"), batch_size=2, max_length=32, widths=(1,))
    prompts, stop = cuda_ranks_program.PROMPTS, MaxNewTokens(20)
    greedy = Generator(decoder, stop=stop)(prompts).ids
    sampled = Generator(decoder, stop=stop, **cuda_ranks_program.PARTS)(prompts).ids

    for rank in found:
        assert (greedy, sampled, greedy) == (rank["greedy"], rank["sampled"], rank["loaded"])
        assert (True, 1) == (rank["chooses"], rank["heads"])
