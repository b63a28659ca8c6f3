"""
The calls of ``torch.cuda`` that the CUDA target makes, behind a protocol.

Graphs are recorded as PyTorch documents (*CUDA semantics*, section *CUDA Graphs*): after warm-up runs,
on a side stream, into one memory pool. Tests replace the runtime by a stand-in, so that everything else
is tested without a GPU.
"""

import os
from collections.abc import Callable
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

Replay = Callable[[], None]
"""Runs a recorded program again, over the same memory; returns before it has finished."""

_WARM_UPS = 2
"""Runs before a recording: the first compiles and tunes, the second runs as all later ones do."""


@attrs.frozen
class Gpu:
    """The kind of GPU that a decoder was compiled for."""

    name: str
    capability: tuple[int, int]
    """Compute capability, such as ``(9, 0)``."""

    cuda: str
    """CUDA version that torch was built with."""


class Recorder(Protocol):
    """Records the programs of one decoder."""

    def record(self, run: Callable[[], None]) -> Replay:
        """
        Warm up *run* and record it.

        Args:
            run: Reads and writes only tensors whose memory stays in place.
        """
        ...


class Runtime(Protocol):
    """Access to a GPU."""

    def lack(self) -> str | None:
        """Why there is no GPU; None if there is one."""
        ...

    def device(self, name: str) -> torch.device:
        """
        The device of that *name*, such as ``"cuda:1"``, with its number.

        ``"cuda"`` is the current one. Where that is the first, which it is if the program has chosen none, it
        is the one of LOCAL_RANK, the number that torchrun gives each process of a host, if there are so many.
        """
        ...

    def gpu(self, device: torch.device) -> Gpu:
        """The kind of GPU that *device* is."""
        ...

    def staging(self, size: int) -> Tensor:
        """``[size]`` bytes of host memory for asynchronous copies."""
        ...

    def recorder(self, device: torch.device) -> Recorder:
        """A new recorder on *device*."""
        ...

    def wait(self, device: torch.device) -> None:
        """Block until *device* has finished all work."""
        ...


@attrs.frozen
class CudaRuntime:
    """Runtime over PyTorch's CUDA API."""

    def lack(self) -> str | None:
        """As :meth:`Runtime.lack`."""
        if torch.version.cuda is None:
            return f"torch {torch.__version__}, which is built without CUDA"
        if not torch.cuda.is_available():
            return f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, which finds no GPU"
        return None

    def device(self, name: str) -> torch.device:
        """As :meth:`Runtime.device`."""
        device, own = torch.device(name), int(os.environ.get("LOCAL_RANK", "-1"))
        if device.index is not None:
            return device
        # A launcher may let each process see its own GPU alone.
        exists, current = 0 <= own < torch.cuda.device_count(), torch.cuda.current_device()
        return torch.device(device.type, own if exists and current == 0 else current)

    def gpu(self, device: torch.device) -> Gpu:
        """As :meth:`Runtime.gpu`."""
        capability = torch.cuda.get_device_capability(device)
        return Gpu(torch.cuda.get_device_name(device), capability, str(torch.version.cuda))

    def staging(self, size: int) -> Tensor:
        """As :meth:`Runtime.staging`."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def recorder(self, device: torch.device) -> Recorder:
        """As :meth:`Runtime.recorder`."""
        return CudaRecorder(device)

    def wait(self, device: torch.device) -> None:
        """As :meth:`Runtime.wait`."""
        torch.cuda.current_stream(device).synchronize()


class CudaRecorder:
    """Records on one side stream into one pool: a decoder's programs never run concurrently."""

    def __init__(self, device: torch.device):
        with torch.cuda.device(device):
            self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._pool: Any = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], None]) -> Replay:
        """As :meth:`Recorder.record`."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        # On the recording's stream, since cuBLAS workspaces belong to a stream.
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                run()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads, such as NCCL's watchdog, may call CUDA meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        replay: Replay = graph.replay
        return replay
