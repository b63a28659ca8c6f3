"""
Memory for what does not outlive a call.

A step's largest temporaries are too large for the allocator to keep: it takes them fresh from
the system every time, and the page faults cost more than the arithmetic. So each thread keeps
some. All of it is on the host.
"""

import threading

import torch
from torch import Tensor


class _Own(threading.local):
    """What one thread keeps."""

    def __init__(self) -> None:
        self.scratch: dict[str, Tensor] = {}
        self.free: list[Tensor] = []


_own = _Own()


def scratch(like: Tensor, purpose: str) -> Tensor:
    """
    An uninitialised tensor of the shape and dtype of *like*: the thread's own.

    It is valid until the thread asks for the next one of that *purpose*: for code that calls
    nobody else's in between.
    """
    memory = _own.scratch[purpose] = _large_enough(_own.scratch.get(purpose), like)
    return _shaped(memory, like)


class Workspace:
    """
    Memory that one call writes into, from :meth:`room` to :meth:`close`.

    A call inside the call, by a part of somebody else's, gets a workspace of its own.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self.logits: Tensor | None = None
        """What :meth:`room` gave."""

    def room(self, like: Tensor) -> Tensor:
        """An uninitialised tensor of the shape and dtype of *like*, in place of the one before it."""
        if self._memory is None and _own.free:
            self._memory = _own.free.pop()
        self._memory = _large_enough(self._memory, like)
        self.logits = _shaped(self._memory, like)
        return self.logits

    def holds(self, tensor: Tensor) -> bool:
        """Whether *tensor* lies in this memory, whole or in part."""
        memory = self._memory
        return memory is not None and 0 <= tensor.data_ptr() - memory.data_ptr() < memory.numel()

    def close(self) -> None:
        """Leave the memory to the thread's next call."""
        if self._memory is not None:
            _own.free.append(self._memory)
            self._memory = self.logits = None


def _large_enough(memory: Tensor | None, like: Tensor) -> Tensor:
    size = like.numel() * like.element_size()
    return torch.empty(size, dtype=torch.uint8) if memory is None or memory.numel() < size else memory


def _shaped(memory: Tensor, like: Tensor) -> Tensor:
    return memory[: like.numel() * like.element_size()].view(like.dtype).view(like.shape)
