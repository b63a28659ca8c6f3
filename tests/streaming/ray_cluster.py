"""
An application on a Ray of two processors, for test_ray_serve.py: ``ray_cluster.py FOLDER``.

Prints one line of JSON with the results through a handle and the HTTP port, and serves until its
standard input ends. A separate process keeps Ray's state out of the tests' process.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.decoding.protocols import DecoderShape
from decodekit.streaming.ray_serve import serve_app
from decodekit.testing import ScriptedDecoder

TOKENS = 150
"""What every generation has."""

SLOWLY = 5
"""First token of prompts that are decoded slowly enough to observe."""

FORBIDDEN = 10
"""A token that makes the forward fail."""


@attrs.define(eq=False)
class Watched:
    """A scripted decoder that writes a byte into *file* for each forward."""

    file: Path
    pause: float = 0.01
    """Seconds that a forward takes where it is slow."""

    _decoder: ScriptedDecoder = attrs.field(init=False)

    @_decoder.default
    def _scripted(self) -> ScriptedDecoder:
        table = torch.randn(31, 11, generator=torch.Generator().manual_seed(0))
        table[:, FORBIDDEN] = -torch.inf
        return ScriptedDecoder(table, batch_size=2, max_length=256)

    @property
    def shape(self) -> DecoderShape:
        return self._decoder.shape

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        if (ids == FORBIDDEN).any():
            raise RuntimeError("a secret of the server's")
        with self.file.open("ab") as file:
            file.write(b".")
        logits = self._decoder.forward(ids, cache_pos)
        if self._decoder.slots[0, 0] == SLOWLY:
            time.sleep(self.pause)
        return logits


def generator(file: Path, pause: float = 0.01) -> Generator:
    """The generator of each replica."""
    return Generator(Watched(file, pause), stop=MaxNewTokens(TOKENS))


def builder(folder: Path) -> Callable[[], Generator]:
    """A *build* function that also records the replica's cores."""

    def build() -> Generator:
        (folder / f"{os.getpid()}.cores").write_text(os.environ.get("NEURON_RT_VISIBLE_CORES", "none"))
        return generator(folder / f"{os.getpid()}.forwards")

    return build


def forwards(folder: Path) -> int:
    """Number of forwards of all replicas so far."""
    return sum(file.stat().st_size for file in folder.glob("*.forwards"))


def settled(folder: Path) -> int:
    """Number of forwards, once none has come for half a second."""
    before, now = -1, forwards(folder)
    while now != before:
        time.sleep(0.5)
        before, now = now, forwards(folder)
    return now


def through_the_handle(handle: Any, folder: Path) -> dict[str, Any]:
    """Results through a Python handle."""
    seen: dict[str, Any] = {}
    start = forwards(folder)
    events = handle.options(stream=True).stream.remote([[SLOWLY, 2, 3], [4]])
    first = next(events)
    seen["forwards at the first event"] = forwards(folder) - start
    seen["streamed"] = [event.as_dict() for event in (first, *events)]
    seen["generated"] = [
        row.as_dict() for row in handle.generate.remote([1, 2, 3], random_streams=[7]).result()
    ]

    start = forwards(folder)
    events = handle.options(stream=True).stream.remote([SLOWLY, 6])
    next(events)
    events.cancel()
    seen["forwards of the cancelled stream"] = settled(folder) - start

    start = forwards(folder)
    whole = handle.generate.remote([SLOWLY, 6])
    while forwards(folder) == start:
        time.sleep(0.01)
    whole.cancel()
    seen["forwards of the cancelled generation"] = settled(folder) - start

    start = forwards(folder)
    try:
        handle.generate.remote([11]).result()
    except ValueError as error:
        seen["refused"] = str(error)
    seen["forwards of the refused"] = forwards(folder) - start
    return seen


def through_a_stop(folder: Path) -> dict[str, Any]:
    """Results of requests that run when their application is deleted."""
    from ray import serve

    folder.mkdir()
    app = serve_app(builder(folder), ray_actor_options={"num_cpus": 0})
    handle = serve.run(app, name="stopping", route_prefix="/stopping")
    streams = [handle.options(stream=True).stream.remote([SLOWLY, last]) for last in (7, 8, 9)]
    # Two of them run, and the third waits for a row.
    begun = [[next(events)] for events in streams[:2]]
    stop = threading.Thread(target=serve.delete, args=("stopping",))
    stop.start()
    stopped = [
        [event.as_dict() for event in (*first, *events)]
        for first, events in zip([*begun, []], streams, strict=True)
    ]
    stop.join()
    return {
        "stopped": stopped,
        "after the stop": "listed" if "stopping" in serve.status().applications else "ended",
    }


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main(folder: Path) -> None:
    """Serve, print the results, and wait."""
    import ray
    from ray import serve

    address = ray.init(
        num_cpus=2,
        resources={"neuron_cores": 4},
        # A container may have 64 MB of shared memory, or none to speak of.
        object_store_memory=80 * 2**20,
        _plasma_directory=str(folder),
        _temp_dir=str(folder / "ray"),
        include_dashboard=False,
        log_to_driver=False,
    ).address_info["address"]
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    app = serve_app(
        builder(folder),
        neuron_cores=2,
        autoscaling_config={"min_replicas": 2, "max_replicas": 2},
        # Frees the CPUs for the batch job.
        ray_actor_options={"num_cpus": 0},
    )
    handle = serve.run(app)
    seen = {**through_the_handle(handle, folder), **through_a_stop(folder / "stopping")}
    print(json.dumps({"address": address, "port": port, **seen}), flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
