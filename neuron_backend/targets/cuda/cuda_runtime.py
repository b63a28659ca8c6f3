"""
All that the target for CUDA uses of ``torch.cuda``.

Graphs are recorded as PyTorch's documentation says (*CUDA semantics*, section *CUDA Graphs*): after
runs that warm up, on a side stream, into one pool of memory. The tests put a stand-in in its place, so
that everything else is known to work where there is no GPU.
"""

import os
from collections.abc import Callable
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

Replay = Callable[[], None]
"""Runs what was recorded once more, over the same memory; returns before it has finished."""

_WARM_UPS = 2
"""Runs before a recording: the first compiles and measures, and the second does as all later ones do."""


@attrs.frozen
class Gpu:
    """What a decoder was made on."""

    name: str
    capability: tuple[int, int]
    """Of its kernels, such as ``(9, 0)``."""

    cuda: str
    """The version of CUDA that torch was built with."""


class Recorder(Protocol):
    """Records the programs of one decoder."""

    def record(self, run: Callable[[], None]) -> Replay:
        """
        Run *run* until it is warm, and record what it does.

        Args:
            run: Works on tensors that stay where they are, and leaves its results in such.
        """
        ...


class Runtime(Protocol):
    """A kind of GPU."""

    def lack(self) -> str | None:
        """Why there is no GPU; None if there is one."""
        ...

    def device(self, name: str, spread: bool) -> torch.device:
        """
        The device of that *name*, with its number.

        Args:
            name: Such as ``"cuda"`` or ``"cuda:1"``.

            spread: Whether each process of this host takes another, if *name* has no number.
        """
        ...

    def gpu(self, device: torch.device) -> Gpu:
        """What *device* is."""
        ...

    def staging(self, size: int) -> Tensor:
        """``[size]`` bytes of the host, from and to which a device copies while the host goes on."""
        ...

    def recorder(self, device: torch.device) -> Recorder:
        """A new one."""
        ...

    def wait(self, device: torch.device) -> None:
        """Let the host wait for all that *device* was given."""
        ...


@attrs.frozen
class CudaRuntime:
    """PyTorch's."""

    def lack(self) -> str | None:
        """As :meth:`Runtime.lack`."""
        if torch.version.cuda is None:
            return f"torch {torch.__version__}, which is built without CUDA"
        if not torch.cuda.is_available():
            return f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, which finds no GPU"
        return None

    def device(self, name: str, spread: bool) -> torch.device:
        """As :meth:`Runtime.device`."""
        device = torch.device(name)
        if device.index is not None:
            return device
        # As torchrun numbers the processes of a host.
        own = os.environ.get("LOCAL_RANK") if spread else None
        return torch.device(device.type, torch.cuda.current_device() if own is None else int(own))

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
    """One side stream, and one pool: programs of one decoder never run at the same time."""

    def __init__(self, device: torch.device):
        with torch.cuda.device(device):
            self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._pool: Any = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], None]) -> Replay:
        """As :meth:`Recorder.record`."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        # On the stream of the recording: the workspaces of cuBLAS belong to a stream.
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                run()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # What other threads do meanwhile, such as the one that watches over NCCL, is their own affair.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        replay: Replay = graph.replay
        return replay
