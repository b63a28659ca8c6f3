"""
Kernel calls of a graph: Inductor generates the C++ loops, and one run over tensors records what is called.

Nothing is computed: loops and own kernels are recorded in place of being run, with the memory that they read
and write. All shapes but the number of slots are fixed, so each run makes the same calls.
"""

from collections.abc import Callable, Sequence
from ctypes import string_at
from typing import Any
from unittest import mock

import attrs
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

from ...layered.layer_graphs import NotLayered, layers
from ..kernel_calls import Argument, Ids, KernelCalls

_aten: Any = torch.ops.aten

# What makes memory or another view of it; everything else would compute.
_LAYOUTS = {
    _aten.alias.default,
    _aten.as_strided.default,
    _aten.detach.default,
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.view.default,
}


# Bytes of a constant that is written into the source.
_LARGEST_CONSTANT = 1 << 16


@attrs.frozen
class Loop:
    """A C++ function that Inductor generated, named ``kernel``."""

    types: tuple[str, ...]
    """Types of its arguments."""

    source: str


@attrs.frozen
class Place:
    """Bytes of a piece of memory."""

    memory: int
    """Which one: an index into :attr:`Recording.sizes`."""

    offset: int = 0


@attrs.frozen
class Call:
    """One call."""

    function: Loop | str
    """A loop, a C function of own kernels, or ``"layers"``."""

    arguments: tuple[Any, ...]
    """Numbers, places, tuples of either, or the program's ids."""


@attrs.frozen
class Recording:
    """The calls of one run."""

    calls: tuple[Call, ...]
    sizes: tuple[int, ...]
    """Bytes of each piece of memory, the inputs' first."""

    inputs: int
    """Number of inputs."""

    outputs: tuple[int, ...]
    """The memory of each output."""

    shapes: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    """Dtype and shape of each output."""

    constants: dict[int, bytes]
    """The content of memory that Inductor computed when it compiled."""


@attrs.frozen(eq=False)
class LoweredGraph:
    """A graph that Inductor has compiled to calls."""

    _run: Callable[..., Sequence[Tensor]]

    def recorded(self, inputs: Sequence[Tensor], columns: int) -> tuple[Recording, list[list[Tensor]]]:
        """
        Record the calls over *inputs*.

        Args:
            inputs: Those of the graph.

            columns: Of all rows of the program. Operations over as many rows are given the ids, so that they
                can leave out padding; :func:`with_agreed_ids` takes back what only looks alike.

        Returns:
            The calls; and what ``decodekit::layers`` was given, if it was called.

        Raises:
            NotLayered: Something else would be computed by torch.
        """
        recorder = _Recorder(inputs, columns)
        _ACTIVE.append(recorder)
        try:
            with torch.no_grad(), recorder:
                outputs = self._run(*inputs)
        except AssertionError as error:
            raise NotLayered(f"a layer is given other strides than it was compiled for: {error}") from error
        finally:
            _ACTIVE.pop()
        return recorder.recording(outputs), recorder.given


def with_agreed_ids(recordings: Sequence[Recording]) -> list[Recording]:
    """
    The *recordings* of one graph over different numbers of slots, with ids only where all of them have ids.

    An operation over slots has as many rows as the program has columns for one number of slots alone.
    """
    agreed = [
        all(Ids() in call.arguments for call in calls)
        for calls in zip(*(recording.calls for recording in recordings), strict=True)
    ]
    return [
        attrs.evolve(
            recording,
            calls=tuple(
                call if keeps else _without_ids(call)
                for call, keeps in zip(recording.calls, agreed, strict=True)
            ),
        )
        for recording in recordings
    ]


def _without_ids(call: Call) -> Call:
    arguments = (None if isinstance(each, Ids) else each for each in call.arguments)
    return attrs.evolve(call, arguments=tuple(arguments))


def lower(module: GraphModule, options: dict[str, Any]) -> LoweredGraph:
    """Compile *module* for the values in its placeholders' metadata, without a C++ compiler."""
    # Imported on demand: takes a second or two, and only compiling needs it.
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_fx import compile_fx

    inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    with mock.patch.object(AsyncCompile, "cpp_pybinding", _loop), torch.no_grad():
        run: Any = compile_fx(module, inputs, config_patches=options)
    return LoweredGraph(run)


def _loop(_: Any, types: list[str], source: str) -> Callable[..., None]:
    loop = Loop(tuple(types), source)
    return lambda *arguments: _ACTIVE[-1].add(loop, *arguments)


class _Recorder(TorchDispatchMode, KernelCalls):  # type: ignore[no-untyped-call]
    """Records own kernels and loops."""

    def __init__(self, inputs: Sequence[Tensor], columns: int):
        super().__init__()  # type: ignore[no-untyped-call]
        self._columns = columns
        self.given: list[list[Tensor]] = []
        self._calls: list[Call] = []
        self._memory: list[range] = []
        # Memory that is freed would be given out again.
        self._kept: list[Tensor] = []
        for tensor in inputs:
            # Not of its storage, which several inputs may share.
            last = sum(
                (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            start = tensor.data_ptr()
            self._memory.append(range(start, start + (last + 1) * tensor.itemsize))
        self._inputs = len(self._memory)
        self._own = self.operations()
        self._constants: dict[int, bytes] = {}

    def add(self, function: Loop | str, *arguments: Argument | Sequence[Tensor]) -> None:
        """Record a call."""
        if isinstance(function, Loop):
            self._keep_constants(function, arguments)
        self._calls.append(Call(function, tuple(map(self._recorded, arguments))))

    def _keep_constants(self, loop: Loop, arguments: Sequence[Argument | Sequence[Tensor]]) -> None:
        """Keep what is read before it was written."""
        tensors = [
            (kind, each) for kind, each in zip(loop.types, arguments, strict=True) if isinstance(each, Tensor)
        ]
        # A loop may read what it writes.
        written = {_storage(tensor) for kind, tensor in tensors if not kind.startswith("const")}
        for _, tensor in tensors:
            if _storage(tensor) in written or self._is_known(tensor):
                continue
            size = tensor.untyped_storage().nbytes()
            if size > _LARGEST_CONSTANT:
                raise NotLayered(f"Inductor has computed a constant of {size} bytes")
            self._constants[self._place(tensor).memory] = string_at(_storage(tensor), size)

    def _is_known(self, tensor: Tensor) -> bool:
        return any(tensor.data_ptr() in memory for memory in self._memory)

    def call(self, function: str, *arguments: Argument) -> None:
        """Record a call of own kernels."""
        self.add(function, *arguments)

    def ids(self, rows: int) -> Argument:
        """The program's, if the *rows* are its columns."""
        return Ids() if rows == self._columns else None

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.ops.decodekit.layers.default:
            carried, shared = args
            out = layers(carried, shared)
            self.given = [list(carried), list(shared)]
            self.add("layers", carried, shared, out)
            return out
        if function.namespace == "decodekit":
            return self._own[function](*args)
        if function not in _LAYOUTS:
            raise NotLayered(f"{function} is computed by torch")
        return function(*args, **(kwargs or {}))

    def recording(self, outputs: Sequence[Tensor]) -> Recording:
        """What was recorded, with the memory of *outputs*."""
        places = [self._place(tensor) for tensor in outputs]
        if any(
            place.offset or place.memory < self._inputs or not tensor.is_contiguous()
            for place, tensor in zip(places, outputs, strict=True)
        ):
            raise NotLayered("an output is part of other memory")
        shapes = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in outputs)
        memory = tuple(place.memory for place in places)
        return Recording(
            tuple(self._calls), tuple(map(len, self._memory)), self._inputs, memory, shapes, self._constants
        )

    def _recorded(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return self._place(argument)
        if isinstance(argument, list | tuple):
            return tuple(map(self._recorded, argument))
        return argument

    def _place(self, tensor: Tensor) -> Place:
        address = tensor.data_ptr()
        for number, memory in enumerate(self._memory):
            if address in memory:
                return Place(number, address - memory.start)
        storage = tensor.untyped_storage()
        self._memory.append(range(storage.data_ptr(), storage.data_ptr() + max(storage.nbytes(), 1)))
        self._kept.append(tensor)
        return Place(len(self._memory) - 1, address - storage.data_ptr())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


_ACTIVE: list[_Recorder] = []
