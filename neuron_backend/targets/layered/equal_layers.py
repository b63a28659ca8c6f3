"""
Layers of a model that run the same operations, found by recording one forward.

Two layers are of one kind if their operations, shapes and dtypes are equal, apart from their own weights and
their own part of the cache. Everything else that they read must be the same tensor, or what the layer before
has passed on. So one compiled function serves all layers of a kind.
"""

from collections.abc import Sequence
from types import MappingProxyType

import attrs
from torch import Tensor, nn

from ...models.early_exit import layers_of
from ...step import Step
from .layer_record import Metadata, Origin, Segment, Shapes, record


@attrs.frozen
class EqualLayers:
    """The layers of a step and their kinds."""

    name: str
    """Name of the list of layers in the step: ``"model.model.layers"``."""

    kinds: tuple[int, ...]
    """For each layer, the first layer that runs the same operations."""

    carried: tuple[Metadata, ...]
    """What each layer passes on to the next; the tensors are told apart by dtype and shape."""

    @property
    def needed(self) -> int:
        """Number of first layers among which each kind is."""
        return max(self.kinds) + 1


def equal_layers(
    step: Step, inputs: Sequence[Tensor], states: int, shapes: Shapes = MappingProxyType({})
) -> EqualLayers | None:
    """
    The kinds of layers of *step*, from one forward over *inputs*.

    Args:
        step: The step.

        inputs: Its inputs, of which the last are the cache.

        states: Number of the cache's tensors that belong to layers: all keys, then all values. One more
            follows.

        shapes: Operations that are not run.

    Returns:
        None if its layers are not one list of modules, or do not pass on the same tensors: some read what
        others before the last have computed.
    """
    layers = layers_of(step.model, states // 2)
    if layers is None:
        return None
    name = next(name for name, module in step.named_modules() if module is layers)
    segments = record(step, name, layers, inputs, inputs[-states - 1 : -1], shapes)
    numbers = [number for number, segment in enumerate(segments) if segment.layer is not None]
    if not _follow_each_other(segments, numbers, len(layers)):
        return None
    passed = [_passed(segments, number, number == numbers[-1]) for number in numbers]
    carried = tuple(passed[0] or ())
    if any(each is None or set(each) != set(carried) for each in passed):
        return None
    first = [_begins(segments, numbers, layer, carried) for layer in range(len(layers))]
    if None in first:
        return None
    keys = [
        repr((segments[number].operations, sources, _modules(layer), [out[each] for each in carried]))
        for number, sources, layer, out in zip(numbers, first, layers, passed, strict=True)
        if out is not None
    ]
    return EqualLayers(name, tuple(map(keys.index, keys)), carried)


def _follow_each_other(segments: Sequence[Segment], numbers: Sequence[int], layers: int) -> bool:
    """Whether each layer runs once, in order, with nothing between them."""
    between = [segment for segment in segments[numbers[0] : numbers[-1]] if segment.layer is None]
    in_order = [segments[number].layer for number in numbers] == list(range(layers))
    return in_order and not any(segment.operations for segment in between)


def _passed(segments: Sequence[Segment], layer: int, last: bool) -> dict[Metadata, int] | None:
    """The results of a layer's segment that others read, by number; None if a later layer reads some."""
    found: dict[Metadata, int] = {}
    for reader, segment in enumerate(segments[layer + 1 :], layer + 1):
        for origin, metadata in segment.sources:
            if origin[:2] != ("made", layer):
                continue
            # Layers alternate with what lies between them.
            if not last and reader != layer + 2:
                return None
            if found.setdefault(metadata, origin[2]) != origin[2]:
                return None
    return found


def _begins(
    segments: Sequence[Segment], numbers: Sequence[int], layer: int, carried: Sequence[Metadata]
) -> list[Origin] | None:
    """Where a layer's tensors come from, as seen from it; None if no other layer could be like it."""
    sources = []
    for origin, metadata in segments[numbers[layer]].sources:
        kind, *place = origin
        if kind == "own":
            if place[0] != layer:
                return None
            origin = ("own", place[1])
        elif kind == "made" and place[0] in numbers:
            if place[0] != numbers[layer - 1]:
                return None
            origin = ("carried",)
        elif kind == "made" and layer == 0 and metadata in carried:
            origin = ("carried",)
        sources.append((*origin, metadata))
    given = [source for source in sources if source[0] == "carried"]
    return sources if len(set(given)) == len(given) else None


def _modules(layer: nn.Module) -> list[tuple[str, str]]:
    return [(path, type(module).__name__) for path, module in layer.named_modules()]
