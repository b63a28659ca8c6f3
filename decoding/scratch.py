"""Memory for what does not outlive a call."""

import threading

import torch
from torch import Tensor

_own = threading.local()


def scratch(like: Tensor, purpose: str) -> Tensor:
    """
    An uninitialised tensor of the shape and dtype of *like*, on the host: the thread's own.

    It is valid until the thread asks for the next one of that *purpose*. A step's largest
    temporaries are too large for the allocator to keep: it takes them fresh from the system
    every time, and the page faults cost more than the arithmetic.
    """
    size = like.numel() * like.element_size()
    memory: Tensor | None = getattr(_own, purpose, None)
    if memory is None or memory.numel() < size:
        memory = torch.empty(size, dtype=torch.uint8)
        setattr(_own, purpose, memory)
    return memory[:size].view(like.dtype).view(like.shape)


def is_scratch(tensor: Tensor, purpose: str) -> bool:
    """Whether *tensor* lies in the thread's scratch memory of that *purpose*."""
    memory: Tensor | None = getattr(_own, purpose, None)
    return memory is not None and tensor.untyped_storage().data_ptr() == memory.data_ptr()
