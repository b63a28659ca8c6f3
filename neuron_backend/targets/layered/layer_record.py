"""Record of the operations in each layer of a step, and of where the tensors that they read come from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import attrs
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from ...step import Step

Shapes: TypeAlias = Mapping[Any, Callable[..., Any]]
"""For operations that are recorded without being run: a function that makes their results, uninitialised."""

Metadata: TypeAlias = tuple[torch.dtype, tuple[int, ...]]
"""Dtype and shape."""

Origin: TypeAlias = tuple[Any, ...]
"""
Where a tensor comes from: ``("own", layer, name)`` is a layer's weight or part of the cache, ``("shared",
name)`` another weight, ``("made", segment, number)`` a result, ``("constant", value)`` anything else.
"""

# Constants of up to so many numbers are compared by value.
_COMPARED = 1 << 12


@attrs.define
class Segment:
    """The operations of one layer, or those between layers."""

    layer: int | None
    """None between layers."""

    operations: list[object] = attrs.field(factory=list)
    """Operations with their arguments and results; tensors by number."""

    sources: list[tuple[Origin, Metadata]] = attrs.field(factory=list)
    """Each tensor from outside, in the order of first use."""

    results: int = 0
    """Number of tensors that were made."""


def record(
    step: Step,
    name: str,
    layers: nn.ModuleList,
    inputs: Sequence[Tensor],
    cache: Sequence[Tensor],
    shapes: Shapes,
) -> list[Segment]:
    """
    Run *step* over *inputs* and record its operations.

    Args:
        step: The step.

        name: Name of the list of layers in it.

        layers: The list.

        inputs: Its inputs.

        cache: Those of them that are keys and values: keys of all layers, then values.

        shapes: Operations that are not run.
    """
    recorder = _Recorder(step, name, cache, shapes)
    with torch.no_grad(), ExitStack() as hooks:
        for number, layer in enumerate(layers):
            hooks.enter_context(_during(layer, recorder, number))
        with recorder:
            step(*inputs)
    return recorder.segments


@contextmanager
def _during(layer: nn.Module, recorder: "_Recorder", number: int) -> Iterator[None]:
    """Context in which what *layer* does is recorded as its own."""
    begin = layer.register_forward_pre_hook(lambda *_: recorder.begin(number))
    end = layer.register_forward_hook(lambda *_: recorder.begin(None))
    try:
        yield
    finally:
        begin.remove()
        end.remove()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations; tensors by where they come from."""

    def __init__(self, step: Step, name: str, cache: Sequence[Tensor], shapes: Shapes):
        super().__init__()  # type: ignore[no-untyped-call]
        self._shapes = shapes
        self.segments = [Segment(None)]
        self._origins = WeakTensorKeyDictionary()
        self._numbers: dict[Origin, int] = {}
        for full, tensor in [*step.named_parameters(), *step.named_buffers()]:
            layer, _, own = full.removeprefix(f"{name}.").partition(".")
            is_own = full.startswith(f"{name}.") and layer.isdecimal()
            self._origins[tensor] = ("own", int(layer), own) if is_own else ("shared", full)
        layers = len(cache) // 2
        for number, tensor in enumerate(cache):
            self._origins[tensor] = ("own", number % layers, ("keys", "values")[number // layers])

    def begin(self, layer: int | None) -> None:
        """Begin the operations of *layer*, or those after one."""
        self.segments.append(Segment(layer))
        self._numbers = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run and record an operation."""
        kwargs = kwargs or {}
        segment = self.segments[-1]
        seen = tree_map_only(Tensor, self._seen, (args, kwargs))
        shaped = self._shapes.get(function)
        if shaped is None:
            out = function(*args, **kwargs)
        else:
            # Which operation it is matters, not what it computes.
            out = tree_map_only(Tensor, Tensor.zero_, shaped(*args))
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        for result in results:
            # An operation in place gives a tensor that is known.
            if result not in self._origins:
                self._origins[result] = ("made", len(self.segments) - 1, segment.results)
                segment.results += 1
        segment.operations.append((str(function), repr(seen), [metadata(result) for result in results]))
        return out

    def _seen(self, tensor: Tensor) -> object:
        """What stands for *tensor* in the arguments of an operation."""
        origin: Origin | None = self._origins.get(tensor)  # type: ignore[no-untyped-call]
        if origin is None:
            origin = self._origins[tensor] = ("constant", _value(tensor))
        if origin[:2] == ("made", len(self.segments) - 1):
            return origin[2]
        if origin not in self._numbers:
            self._numbers[origin] = len(self._numbers)
            self.segments[-1].sources.append((origin, metadata(tensor)))
        return ("outside", self._numbers[origin], metadata(tensor), tensor.stride())


def metadata(tensor: Tensor) -> Metadata:
    """Dtype and shape of *tensor*."""
    return tensor.dtype, tuple(tensor.shape)


def _value(tensor: Tensor) -> object:
    if tensor.numel() > _COMPARED:
        return id(tensor)
    # Constants have values where nothing else has: in a forward in which nothing is computed.
    with unset_fake_temporarily():
        return metadata(tensor), str(tensor.flatten().tolist())
