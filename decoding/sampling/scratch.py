"""
Scratch memory for the temporaries of a call.

The largest temporaries of a step are too large for the allocator to cache: they are requested from the
system every time, and the page faults cost more than the arithmetic. So each thread keeps some memory,
all of it on the host.
"""

import threading

import torch
from torch import Tensor


class _Own(threading.local):
    """The memory of one thread."""

    def __init__(self) -> None:
        self.scratch: dict[str, Tensor] = {}
        self.free: list[Tensor] = []


_own = _Own()


def scratch(like: Tensor, purpose: str) -> Tensor:
    """
    An uninitialised tensor of the shape and dtype of *like*, private to the thread.

    It is valid until the thread's next call with the same *purpose*, so no foreign code may be called
    in between.
    """
    memory = _own.scratch[purpose] = _large_enough(_own.scratch.get(purpose), like)
    return _shaped(memory, like)


class Workspace:
    """
    Memory that one call writes into, from :meth:`room` to :meth:`close`.

    A nested call by a custom part gets a workspace of its own.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self.logits: Tensor | None = None
        """The latest result of :meth:`room`."""

    def room(self, like: Tensor) -> Tensor:
        """An uninitialised tensor of the shape and dtype of *like*, replacing the previous one."""
        if self._memory is None and _own.free:
            self._memory = _own.free.pop()
        self._memory = _large_enough(self._memory, like)
        self.logits = _shaped(self._memory, like)
        return self.logits

    def holds(self, tensor: Tensor) -> bool:
        """Whether *tensor* uses this memory, wholly or partly."""
        memory = self._memory
        return memory is not None and 0 <= tensor.data_ptr() - memory.data_ptr() < memory.numel()

    def close(self) -> None:
        """Return the memory for the thread's next call."""
        if self._memory is not None:
            _own.free.append(self._memory)
            self._memory = self.logits = None


def _large_enough(memory: Tensor | None, like: Tensor) -> Tensor:
    size = like.numel() * like.element_size()
    return torch.empty(size, dtype=torch.uint8) if memory is None or memory.numel() < size else memory


def _shaped(memory: Tensor, like: Tensor) -> Tensor:
    return memory[: like.numel() * like.element_size()].view(like.dtype).view(like.shape)
