"""The copy to the host is queued first, and waited for when it is read."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.neuron_backend.targets import device_read
from decodekit.neuron_backend.targets.device_read import DeviceRead


class Event:
    """An event that notes what is done with it."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def record(self) -> None:
        self.log.append("record")

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.log.append("synchronize")


class OnDevice:
    """A tensor of a device that copies late: the host's copy is filled when the event is waited for."""

    device = torch.device("cuda")

    def __init__(self, log: list[str]) -> None:
        self.log, self.copy = log, torch.full((2, 1), -7, dtype=torch.int32)

    def to(self, device: str, dtype: Any = None, *, non_blocking: bool) -> Tensor:
        self.log.append(f"copy to {device}, {dtype}, {'later' if non_blocking else 'now'}")
        return self.copy


def test_the_copy_is_recorded_before_anything_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queued without waiting and without a conversion, which would read it; converted when it is there."""
    log: list[str] = []

    class Arriving(Event):
        def synchronize(self) -> None:
            super().synchronize()
            tensor.copy.copy_(torch.tensor([[3], [5]]))

    tensor: Any = OnDevice(log)
    monkeypatch.setattr(device_read, "event_on", lambda device: Arriving(log))
    read = DeviceRead.start(tensor)

    assert ["copy to cpu, None, later", "record"] == log
    found = read.read()
    assert ["copy to cpu, None, later", "record", "synchronize"] == log
    assert ([[3], [5]], torch.int64) == (found.tolist(), found.dtype)


def test_a_copy_outlives_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device writes it later: it is kept until its event has come."""

    class Pending(Event):
        def query(self) -> bool:
            return "written" in self.log

    class Copies(OnDevice):
        def to(self, device: str, dtype: Any = None, *, non_blocking: bool) -> Tensor:
            return self.copy.clone()

    log: list[str] = []
    tensor: Any = Copies(log)
    monkeypatch.setattr(device_read, "event_on", lambda device: Pending(log))
    copy = weakref.ref(DeviceRead.start(tensor)._copy)
    DeviceRead.start(tensor)
    gc.collect()
    assert copy() is not None

    log.append("written")
    DeviceRead.start(tensor)
    gc.collect()
    assert copy() is None
    device_read._UNDER_WAY.clear()


def test_the_host_needs_no_event() -> None:
    """Its work is finished when a call returns."""
    assert [[4]] == DeviceRead.start(torch.tensor([[4]], dtype=torch.int32)).read().tolist()
