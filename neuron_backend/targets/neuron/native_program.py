"""Running programs compiled by torch.compile: one for each width and span, compiled once."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.fx import GraphModule

from ....decoding.optional_protocols import QueuedSample
from ...threads import on_threads
from ..device_read import DeviceRead
from ..device_tensors import on_device

Backend = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
"""Backend of :func:`torch.compile`: a graph and its inputs to a callable."""

# Integers are clamped to this before the device narrows them to 32 bits. Larger ones only occur beside
# padding, where they have no meaning.
_LARGEST = 2**30


@attrs.define(eq=False)
class OnceBackend:
    """A *backend* that compiles the graph of one program only once."""

    backend: Backend
    name: str
    """Name of the program in errors."""

    compilations: int = attrs.field(default=0, init=False)

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """
        Compile the graph.

        Raises:
            RuntimeError: A graph was compiled before.
        """
        if self.compilations:
            raise RuntimeError(
                f"a forward must not compile: got a second graph of {self.name}. Something that "
                "torch.compile looks at has changed since the decoder was made, such as autocast, "
                "the default dtype or device, or torch._dynamo.reset() was called"
            )
        compiled = self.backend(graph, inputs)
        # Counted after success, since torch.compile may abandon an attempt and start again.
        self.compilations += 1
        return compiled


@attrs.frozen(eq=False)
class SpanProgram:
    """A compiled graph of one span."""

    run: Callable[..., Any]
    slots: Tensor
    """Addresses of the slots that it attends to, on the device."""

    backend: OnceBackend

    @classmethod
    def of(cls, graph: GraphModule, slots: Tensor, backend: Backend, name: str) -> "SpanProgram":
        """Wrap *graph*, which is on the device, in torch.compile; the first call compiles it as a whole."""
        once = OnceBackend(backend, name)
        return cls(torch.compile(graph, backend=once, fullgraph=True, dynamic=False), slots, once)


class NativeProgram:
    """The program of one width: host tensors in and out, over weights and cache on a device."""

    def __init__(self, spans: Mapping[int, SpanProgram], cache: Sequence[Tensor], device: torch.device):
        """
        Combine the programs of all spans.

        Args:
            spans: Programs by the number of slots that they attend to, ascending.

            cache: The buffers on *device*; written in place.

            device: Device of the programs.
        """
        self.spans = dict(spans)
        self._cache = tuple(cache)
        self._device = device
        # Dynamo compiles again for another number of threads; those of the host do not matter to a device.
        self._threads = torch.get_num_threads()

    def __call__(self, *inputs: Tensor) -> Any:
        """
        Run on the step's checked inputs without the cache.

        Returns:
            Logits on the host. Of a step that samples: tokens and logits, both on the device, since the
            logits are rarely read.
        """
        *others, slots = inputs
        program = self._program(slots)
        with self._as_compiled():
            given = program.run(*(self._send(tensor) for tensor in others), program.slots, *self._cache)
            # To the host: processors and samplers use operations that the device lacks.
            return given.to("cpu") if isinstance(given, Tensor) else given

    def queue(self, ids: Tensor | QueuedSample, rows: Tensor, *others: Tensor) -> DeviceRead:
        """
        Queue a step that samples, and the copy of its ids to the host; wait for neither.

        As :meth:`~...on_device_sampling.queued_forwards.QueuesProgram.queue`.
        """
        *between, slots = others
        program = self._program(slots)
        with self._as_compiled():
            fed = self._fed(ids, rows)
            inputs = (self._send(tensor, non_blocking=True) for tensor in between)
            sampled, _ = program.run(fed, *inputs, program.slots, *self._cache)
            return DeviceRead.start(sampled)

    @contextlib.contextmanager
    def _as_compiled(self) -> Iterator[None]:
        # Not in the caller's inference mode, since programs are compiled outside of it.
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            on_threads(self._threads),
            on_device(self._device),
        ):
            yield

    def _program(self, slots: Tensor) -> SpanProgram:
        attended = slots.shape[0]
        return next(program for size, program in self.spans.items() if size >= attended)

    def _fed(self, ids: Tensor | QueuedSample, rows: Tensor) -> Tensor:
        """*ids* on the device, with padding in rows that are not fed."""
        if isinstance(ids, Tensor):
            return self._send(ids.masked_fill(~rows[:, None], -1), non_blocking=True)
        if not isinstance(ids, DeviceRead):
            raise TypeError(f"'ids' must be a tensor or what an earlier queue() returned: got {ids!r}")
        if rows.all():
            return ids.tensor
        return torch.where(self._send(rows[:, None], non_blocking=True), ids.tensor, -1)

    def _send(self, tensor: Tensor, non_blocking: bool = False) -> Tensor:
        if tensor.dtype == torch.int64:
            tensor = tensor.clamp(-_LARGEST, _LARGEST)
        # Always a copy, since a caller's tensors may be inference tensors.
        return tensor.to(self._device, copy=True, non_blocking=non_blocking).contiguous()
