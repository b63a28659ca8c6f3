"""Reading a tensor of a device while the device goes on with later work."""

from typing import Any

import attrs
import torch
from torch import Tensor

from ...decoding.fork_safe_lock import fork_safe_lock

# Copies and their events. A device may write a copy whose reader is gone, as of a forward that was queued
# when the text ended.
_UNDER_WAY: list[tuple[Any, Tensor]] = []
_LOCK = fork_safe_lock()


@attrs.frozen(eq=False)
class DeviceRead:
    """
    A tensor on a device and its copy on the host, which may still be under way.

    The copy is queued behind the work that computes the tensor, followed by an event. To copy later would
    wait for all work queued by then: TorchNeuron's blocking copies synchronise the stream
    (``csrc/utils/CopyUtils.cpp``, ``copy_neuron_to_cpu``, in the public copy of April 2026).
    """

    tensor: Tensor
    """On the device. Kept, since the copy reads it."""

    _copy: Tensor
    _done: Any

    @classmethod
    def start(cls, tensor: Tensor) -> "DeviceRead":
        """Queue the copy of *tensor* on the current stream of its device."""
        # In its own dtype: a conversion on the host would read the copy too early.
        copy = tensor.to("cpu", non_blocking=True)
        done = event_on(tensor.device)
        if done is not None:
            done.record()
            with _LOCK:
                _UNDER_WAY[:] = [*(one for one in _UNDER_WAY if not one[0].query()), (done, copy)]
        return cls(tensor, copy, done)

    def read(self) -> Tensor:
        """Wait for the copy; int64."""
        if self._done is not None:
            self._done.synchronize()
        return self._copy.to(torch.int64)


def event_on(device: torch.device) -> Any:
    """A new event of *device*; None on the host, whose work is finished when a call returns."""
    return None if device.type == "cpu" else getattr(torch, device.type).Event()
