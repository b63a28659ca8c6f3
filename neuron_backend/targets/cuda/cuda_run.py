"""A step's compiled parts, run in order over tensors at fixed addresses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.fx import GraphModule

from ..device_tensors import copy_to, place_graph
from ..layered.equal_layers import EqualLayers
from ..layered.graph_parts import GraphParts, around_layers, passed_name
from ..layered.layer_graphs import Source
from ..layered.layered_step import LayeredStep
from .cuda_step import write_into_buffers

Compile = Callable[[GraphModule, str], Callable[..., Any]]
"""Compiles a graph on the device; the name is that of the graph in errors."""


@attrs.frozen(eq=False)
class LayerRun:
    """One layer: its kind's compiled graph over its own weights and cache."""

    run: Callable[..., Any]
    sources: tuple[Source, ...]
    own: tuple[str, ...]
    """Names of its own tensors, in the order of its sources."""

    def __call__(
        self, carried: Sequence[Tensor], shared: Sequence[Tensor], own: Sequence[Tensor]
    ) -> list[Tensor]:
        """Run it; what it passes on."""
        its_own = iter(own)
        given = {"carried": carried, "shared": shared}
        inputs = [
            next(its_own) if source.kind == "own" else given[source.kind][source.number]
            for source in self.sources
        ]
        # Every layer is compiled for the layout of what is passed to the first.
        return [tensor.contiguous() for tensor in self.run(*inputs)]


@attrs.frozen(eq=False)
class StepRun:
    """One program: what it runs, and the tensors that it reads and writes."""

    parts: GraphParts
    before: Callable[..., Any]
    layers: tuple[LayerRun, ...]
    after: Callable[..., Any]

    results: tuple[Tensor, ...]
    """Buffers that it writes its results to."""

    tensors: Mapping[str, Tensor]
    """What it reads, by name, and the cache."""

    @classmethod
    def of(
        cls,
        layered: LayeredStep,
        equal: EqualLayers | None,
        placed: Mapping[str, Tensor],
        results: Sequence[Tensor],
        device: torch.device,
        compiled: Compile,
    ) -> "StepRun":
        """
        Move the parts of a step to *device*.

        Args:
            layered: The step's graphs; their device is changed.

            equal: The kinds of its layers.

            placed: Its inputs and its cache on the device; of its other tensors copies are made.

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
        runs = {kind: compiled(module, f"layer {kind}") for kind, module in kinds.items()}
        layers = []
        for layer, kind in enumerate(equal.kinds if runs and equal else ()):
            sources = layered.graphs.layers[kind].sources
            own = tuple(layered.tensors.names[layer, each.role] for each in sources if each.kind == "own")
            layers.append(LayerRun(runs[kind], sources, own))
        read = {*parts.before.inputs, *parts.after.inputs, *parts.shared, *parts.carried}
        read |= {name for layer in layers for name in layer.own}
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
        carried, shared = read(parts.carried), read(parts.shared)
        for layer in self.layers:
            carried = layer(carried, shared, read(layer.own))
        values |= {passed_name(number): tensor for number, tensor in enumerate(carried)}
        self.after(*self.results, *read(parts.after.inputs))
