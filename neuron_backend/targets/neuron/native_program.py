"""Running programs compiled by torch.compile: one for each width and span, compiled once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.fx import GraphModule

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

    def __call__(self, *inputs: Tensor) -> Any:
        """
        Run on the step's checked inputs without the cache.

        Returns:
            Logits on the host. Of a step that samples: tokens and logits, both on the device, since the
            logits are rarely read.
        """
        *others, slots = inputs
        attended = slots.shape[0]
        program = next(program for size, program in self.spans.items() if size >= attended)
        # Not in the caller's inference mode, since programs are compiled outside of it.
        with torch.inference_mode(False), torch.no_grad(), on_device(self._device):
            given = program.run(*(self._send(tensor) for tensor in others), program.slots, *self._cache)
            # To the host: processors and samplers use operations that the device lacks.
            return given.to("cpu") if isinstance(given, Tensor) else given

    def _send(self, tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.int64:
            tensor = tensor.clamp(-_LARGEST, _LARGEST)
        # Always a copy, since a caller's tensors may be inference tensors.
        return tensor.to(self._device, copy=True).contiguous()
