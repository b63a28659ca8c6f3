"""A step's compiled parts over tensors at fixed addresses, run in order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.fx import GraphModule

from ..device_tensors import copy_to, place_graph
from ..layered.graph_parts import GraphParts, around_layers, passed_name
from ..layered.layer_graphs import Source
from ..layered.layered_step import LayeredStep
from .cuda_step import write_into_buffers

Compile = Callable[[GraphModule, str], Callable[..., Any]]
"""Compiles a graph on the device; the name is that of the graph in errors."""


@attrs.frozen(eq=False)
class PlacedLayer:
    """One layer: its kind's compiled graph over its own weights and cache."""

    compiled: Callable[..., Any]
    sources: tuple[Source, ...]
    own_names: tuple[str, ...]
    """Of its own tensors, in the order of its sources."""

    def __call__(
        self, carried: Sequence[Tensor], shared: Sequence[Tensor], own: Sequence[Tensor]
    ) -> list[Tensor]:
        """Run it; what it passes on."""
        following = iter(own)
        given = {"carried": carried, "shared": shared}
        inputs = [
            next(following) if source.kind == "own" else given[source.kind][source.number]
            for source in self.sources
        ]
        return list(map(_of_standard_strides, self.compiled(*inputs)))


@attrs.frozen(eq=False)
class PlacedStep:
    """One program: what it runs, and the tensors that it reads and writes."""

    parts: GraphParts
    before: Callable[..., Any]
    layers: tuple[PlacedLayer, ...]
    after: Callable[..., Any]

    results: tuple[Tensor, ...]
    """Buffers that it writes its results to."""

    tensors: Mapping[str, Tensor]
    """What it reads, by name, and the cache."""

    @classmethod
    def of(
        cls,
        layered: LayeredStep,
        placed: Mapping[str, Tensor],
        results: Sequence[Tensor],
        device: torch.device,
        compiled: Compile,
    ) -> "PlacedStep":
        """
        Move the parts of a step to *device*.

        Args:
            layered: The step's graphs; their device is changed.

            placed: Its inputs and its cache on the device; of its other tensors copies are made, one for
                all programs.

            results: Buffers for its results on the device.

            device: The device.

            compiled: Compiles each graph.
        """
        parts = around_layers(layered.graphs)
        before, after = parts.before.module, parts.after.module
        write_into_buffers(after)
        kinds = {kind: layer.module for kind, layer in layered.graphs.layers.items()}
        for module in (before, after, *kinds.values()):
            place_graph(device, module)
        graphs = {kind: compiled(module, f"layer {kind}") for kind, module in kinds.items()}
        layers = []
        for layer, kind in enumerate(layered.kinds):
            sources = layered.graphs.layers[kind].sources
            own = tuple(layered.tensors.names[layer, each.role] for each in sources if each.kind == "own")
            layers.append(PlacedLayer(graphs[kind], sources, own))
        read = {*parts.before.inputs, *parts.after.inputs, *parts.shared, *parts.carried}
        read |= {name for layer in layers for name in layer.own_names}
        known = {**layered.tensors.values, **layered.constants}
        copies = {name: copy_to(device, known[name]) for name in read & known.keys() - placed.keys()}
        return cls(
            parts=parts,
            before=compiled(before, "what precedes the layers") if layers else before,
            layers=tuple(layers),
            after=compiled(after, "what follows the layers"),
            results=tuple(results),
            tensors={**placed, **copies},
        )

    def __call__(self) -> None:
        """Run the parts; allocates what they pass on."""
        parts, values = self.parts, dict(self.tensors)

        def read(names: Sequence[str]) -> list[Tensor]:
            return [values[name] for name in names]

        values |= zip(parts.before.results, self.before(*read(parts.before.inputs)), strict=True)
        carried = list(map(_of_standard_strides, read(parts.carried)))
        shared = read(parts.shared)
        for layer in self.layers:
            carried = layer(carried, shared, read(layer.own_names))
        values |= {passed_name(number): tensor for number, tensor in enumerate(carried)}
        self.after(*self.results, *read(parts.after.inputs))


def _of_standard_strides(tensor: Tensor) -> Tensor:
    """
    *tensor* with the strides of a new tensor, along dimensions of one element too.

    A layer is compiled once, for the layout of what the first is given.
    """
    return tensor.contiguous().flatten().view(tensor.shape)
