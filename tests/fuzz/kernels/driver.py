"""The driver program's other side: requests and answers."""

import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from enum import IntEnum
from math import prod
from pathlib import Path
from typing import IO, Self

import attrs
import torch
from torch import Tensor


class Operation(IntEnum):
    """A kernel, by its number in driver.cpp."""

    FLOATS = 0
    INT8 = 1
    INT4 = 2
    ATTENTION = 3
    COLUMNS = 4
    EXPERTS = 5
    EXPERT_COLUMNS = 6


class Place(IntEnum):
    """Where operands lie: before or after a page without access, or between watched zones of the heap."""

    END = 0
    BEGIN = 1
    HEAP = 2


class Stopped(Exception):  # noqa: N818  # a finding, not an error of the campaign
    """Raised when the program ends in a call: a sanitizer's report, or a signal."""


@attrs.frozen
class Way:
    """How a kernel is called."""

    place: Place
    threads: int = 1
    as_programs: bool = False
    """By the functions over tensors, as compiled programs do; otherwise by those over pointers."""


@attrs.frozen(eq=False)
class Call:
    """A kernel and its operands."""

    operation: Operation

    tensors: Sequence[Tensor]
    """Of any strides; the bytes between their elements are sent as they are."""

    shape: Sequence[int]
    """Of the result, whose dtype is that of the first operand."""

    scale: float = 0.0
    """Factor of attention scores."""

    cap: float = 0.0
    """Cap of attention scores; 0: none."""

    ids: tuple[int, ...] = ()
    """Of each row or column, or of equally many rows of experts; negative: padding. None: all are tokens."""


@attrs.frozen(eq=False)
class Driver:
    """A running driver program."""

    _process: subprocess.Popen[bytes]
    _errors: IO[bytes]

    @classmethod
    def start(cls, program: Path, environment: Mapping[str, str]) -> Self:
        """Start *program*; what it writes to standard error is kept in a file beside it."""
        errors = program.with_suffix(".errors").open("w+b")
        process = subprocess.Popen(
            [str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **environment},
        )
        return cls(process, errors)

    def stop(self) -> None:
        """End it."""
        with self._process, self._errors:
            self._process.kill()

    def call(self, call: Call, way: Way) -> Tensor:
        """
        The result of a kernel.

        Args:
            call: The kernel and its operands.

            way: How it is called.

        Raises:
            Stopped: The program ended.
        """
        dtype = call.tensors[0].dtype
        size = prod(call.shape) * dtype.itemsize
        integers = (call.operation, way.as_programs, way.threads, way.place)
        assert not (call.ids and way.as_programs)
        ids = struct.pack(f"<{len(call.ids) + 1}q", len(call.ids), *call.ids)
        head = (
            struct.pack("<4q2d", *integers, call.scale, call.cap) + ids + struct.pack("<q", len(call.tensors))
        )
        try:
            self._stdin.write(b"".join([head, *map(_described, call.tensors), struct.pack("<q", size)]))
            self._stdin.flush()
            answer = bytearray(self._read(size))
        except (BrokenPipeError, EOFError):
            raise Stopped(self._last_words()) from None
        return torch.frombuffer(answer, dtype=dtype).view(*call.shape)

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        found = self._process.stdout.read(count)
        if len(found) < count:
            raise EOFError
        return found

    def _last_words(self) -> str:
        """Exit status and the beginning of the report."""
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        return "\n".join([f"exit status {status}", *lines[:15]])


def _described(tensor: Tensor) -> bytes:
    """Sizes, strides and bytes from the tensor's first element to its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((last + 1,), (1,)).contiguous()
    content = flat.view(torch.uint8).numpy().tobytes()
    dims = tensor.dim()
    numbers = (dims, *tensor.shape, *tensor.stride(), tensor.element_size(), len(content))
    return struct.pack(f"<{len(numbers)}q", *numbers) + content
