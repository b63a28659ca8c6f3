"""
Memory of large pages, for weights.

A forward reads all weights once. In pages of 4 KiB the processor looks up an address every 64 cache lines,
and its prefetchers stop at each page's end. In pages of 2 MiB, one tensor after the other, the products of
one row of bfloat16 take 14 % less time on one thread of an AMD EPYC (Zen 4) and 6 % on two, those of five and
nine rows 5 to 10 %.
"""

import ctypes
import functools
import math
import mmap
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
import torch
from torch import Tensor

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")

_BLOCK = 1 << 26
"""Bytes that are asked of the system at a time. A block is given back with the last tensor in it."""

_LINE = 64
"""Bytes of a cache line, at which each tensor begins."""

_blocks: "weakref.WeakValueDictionary[int, mmap.mmap]" = weakref.WeakValueDictionary()
"""The blocks in use, by address."""


@functools.cache
def has_large_pages() -> bool:
    """Whether the system gives large pages to those who ask."""
    return hasattr(mmap, "MADV_HUGEPAGE") and _SETTING.exists() and "[never]" not in _SETTING.read_text()


@attrs.define(eq=False)
class LargePages:
    """Gives out memory, one piece after the other. Torch's own where there are no large pages."""

    _block: mmap.mmap | None = attrs.field(default=None, init=False)
    _used: int = attrs.field(default=0, init=False)
    """Bytes of the block that were given out."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialised contiguous tensor, with a storage of its own."""
        size = math.prod(shape) * dtype.itemsize
        block = self._with_room(size) if size and has_large_pages() else None
        if block is None:
            return torch.empty(tuple(shape), dtype=dtype)
        begin, self._used = self._used, self._used + size
        return (
            torch.frombuffer(block, dtype=torch.uint8, count=size, offset=begin)
            .view(dtype)
            .view(tuple(shape))
        )

    def _with_room(self, size: int) -> mmap.mmap | None:
        """A block with *size* bytes behind those that are used; None if the system gives none."""
        self._used += -self._used % _LINE
        if self._block is None or self._used + size > len(self._block):
            try:
                # Of this process alone: large pages of shared memory have another setting.
                block = mmap.mmap(-1, max(size, _BLOCK), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                block.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                return None
            _blocks[_address(block)] = self._block = block
            self._used = 0
        return self._block


@attrs.define(eq=False)
class _Area:
    """Memory that tensors share."""

    begin: int
    end: int
    tensors: list[Tensor]


def move_to_large_pages(tensors: Iterable[Tensor]) -> None:
    """
    Move *tensors* in place to memory of large pages, in their order.

    Those that share memory still do. What lies in large pages already stays, and so do tensors that torch
    does not let change. Each tensor's old memory is free before the next one is moved, unless something else
    refers to it.
    """
    if not has_large_pages():
        return
    # Tied weights may come several times.
    areas = _areas(list({id(tensor): tensor for tensor in tensors if _is_movable(tensor)}.values()))
    memory = LargePages()
    # Otherwise parameters would become inference tensors in that mode.
    with torch.inference_mode(False):
        while areas:
            _move(areas.pop(0), memory)


def _address(block: mmap.mmap) -> int:
    return torch.frombuffer(block, dtype=torch.uint8).data_ptr()


def _is_movable(tensor: Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.numel() > 0
        and not tensor.is_inference()
        and not _lies_in_block(tensor.data_ptr())
    )


def _lies_in_block(address: int) -> bool:
    return any(begin <= address < begin + len(block) for begin, block in list(_blocks.items()))


def _areas(tensors: Sequence[Tensor]) -> list[_Area]:
    """The memory of *tensors*, in the order of the first of each."""
    areas: list[_Area] = []
    for tensor in sorted(tensors, key=Tensor.data_ptr):
        begin = tensor.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        end = begin + (last + 1) * tensor.itemsize
        if areas and begin < areas[-1].end:
            areas[-1].end = max(areas[-1].end, end)
            areas[-1].tensors.append(tensor)
        else:
            areas.append(_Area(begin, end, [tensor]))
    place = {id(tensor): number for number, tensor in enumerate(tensors)}
    return sorted(areas, key=lambda area: min(place[id(tensor)] for tensor in area.tensors))


def _move(area: _Area, memory: LargePages) -> None:
    """Copy *area*, and let its tensors refer to the copy."""
    copy = memory.empty((area.end - area.begin,), torch.uint8)
    ctypes.memmove(copy.data_ptr(), area.begin, area.end - area.begin)
    moved = []
    for tensor in area.tensors:
        first = (tensor.data_ptr() - area.begin) // tensor.itemsize
        same = torch.empty(0, dtype=tensor.dtype)
        moved.append(same.set_(copy.untyped_storage(), first, tensor.shape, tensor.stride()))
    for tensor, same in zip(area.tensors, moved, strict=True):
        tensor.data = same
