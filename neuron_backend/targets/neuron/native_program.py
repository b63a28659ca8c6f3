"""Programs that torch.compile makes: one for each width and span, and none later."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.fx import GraphModule

from ..device_tensors import on_device

Backend = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
"""What :func:`torch.compile` takes: a graph and its inputs to something that can be called with them."""

# Numbers that do not fit into 32 bits are narrowed on the way to the device. None of them means
# anything: they stand beside padding.
_LARGEST = 2**30


@attrs.define(eq=False)
class OnceBackend:
    """A *backend* that compiles the graph of one program, once."""

    backend: Backend
    name: str
    """What errors call the program."""

    compilations: int = attrs.field(default=0, init=False)

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """
        Compile.

        Raises:
            RuntimeError: It has done so before.
        """
        if self.compilations:
            raise RuntimeError(
                f"a forward must not compile: got a second graph of {self.name}. Something that "
                "torch.compile looks at has changed since the decoder was made, such as autocast, "
                "the default dtype or device, or torch._dynamo.reset() was called"
            )
        compiled = self.backend(graph, inputs)
        # Not before: torch.compile may give up an attempt and begin again.
        self.compilations += 1
        return compiled


@attrs.frozen(eq=False)
class SpanProgram:
    """A compiled graph of one span."""

    run: Callable[..., Any]
    slots: Tensor
    """What it attends to, on the device."""

    backend: OnceBackend

    @classmethod
    def of(cls, graph: GraphModule, slots: Tensor, backend: Backend, name: str) -> "SpanProgram":
        """Let torch.compile take *graph*, on the device, as a whole; the first call compiles it."""
        once = OnceBackend(backend, name)
        return cls(torch.compile(graph, backend=once, fullgraph=True, dynamic=False), slots, once)


class NativeProgram:
    """What runs at one width: takes and gives tensors of the host, over weights and cache of a device."""

    def __init__(self, spans: Mapping[int, SpanProgram], cache: Sequence[Tensor], device: torch.device):
        """
        Put the programs of all spans together.

        Args:
            spans: By the number of slots that they attend to, ascending.

            cache: The buffers on *device*; written in place.

            device: Where the programs run.
        """
        self.spans = dict(spans)
        self._cache = tuple(cache)
        self._device = device

    def __call__(self, *inputs: Tensor) -> Any:
        """
        What the step takes before the cache, checked, to logits on the host.

        Of a step that chooses: to the choice and the logits, both on the device, since few of the
        latter are ever read.
        """
        *others, slots = inputs
        attended = slots.shape[0]
        program = next(program for size, program in self.spans.items() if size >= attended)
        # Whether the caller is in inference mode must not matter: programs are made outside of it.
        with torch.inference_mode(False), torch.no_grad(), on_device(self._device):
            given = program.run(*(self._send(tensor) for tensor in others), program.slots, *self._cache)
            # Processors and samplers use operations that the device has no kernels for.
            return given.to("cpu") if isinstance(given, Tensor) else given

    def _send(self, tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.int64:
            tensor = tensor.clamp(-_LARGEST, _LARGEST)
        # A copy in any case: what comes from a caller in inference mode is of another kind.
        return tensor.to(self._device, copy=True).contiguous()
