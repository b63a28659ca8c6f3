"""The parallel state for tracing a program for several cores."""

from contextlib import ExitStack
from types import TracebackType
from typing import Any
from unittest.mock import patch

import torch

from .parallel_layers.parallel_state import destroy_model_parallel, initialize_model_parallel


class Distributed:
    """``torch.distributed`` as the first of several processes would see it, although there is one."""

    def __init__(self, world_size: int):
        self._world_size = world_size

    def is_initialized(self) -> bool:
        """True, as with several processes."""
        return True

    def get_world_size(self, group: Any = None) -> int:
        """Number of cores."""
        return self._world_size

    def get_rank(self, group: Any = None) -> int:
        """Programs are traced for the first core."""
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(_distributed, name)


_distributed = torch.distributed


class NxDParallelState:
    """As AWS documents it, for one group of all cores and without process groups."""

    def __init__(self, world_size: int = 1, rank: int = 0, tensor_model_parallel_size: int = 1):
        if rank != 0:
            raise NotImplementedError("the stand-in traces for the first core")
        self.world_size = world_size
        self.tensor_model_parallel_size = tensor_model_parallel_size
        self._patches = ExitStack()

    def __enter__(self) -> "NxDParallelState":
        if torch.distributed.is_initialized():
            raise NotImplementedError("the stand-in knows no process group")
        initialize_model_parallel(self.world_size, self.tensor_model_parallel_size)
        self._patches.enter_context(patch("torch.distributed", Distributed(self.world_size)))
        self._patches.enter_context(patch("torch_xla.runtime.world_size", lambda: self.world_size))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.close()
        destroy_model_parallel()
