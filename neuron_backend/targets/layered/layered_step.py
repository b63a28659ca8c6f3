"""A step's graphs, exported with as many of its first layers as it has kinds."""

import contextlib
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from ...kv_cache.buffers import CacheBuffers
from ...lowering.complex_pairs import pair_complex_numbers
from ...models.early_exit import only_first_layers
from ...models.fused_projections import merge_equal_products, trace_fused
from ...step import Step
from .equal_layers import EqualLayers
from .layer_graphs import LayeredGraph, cut
from .step_tensors import StepTensors


@attrs.frozen(eq=False)
class LayeredStep:
    """The graphs of a step, and the tensors that they read."""

    graphs: LayeredGraph
    tensors: StepTensors

    kinds: tuple[int, ...]
    """For each layer, the kind whose graph it runs; empty if the whole step is one graph."""

    constants: dict[str, Tensor]
    """Those that tracing found besides parameters and buffers, by name."""


def layered_step(
    step: Step,
    inputs: tuple[Tensor, ...],
    cache: CacheBuffers,
    equal: EqualLayers | None,
    dynamic_shapes: Any = None,
) -> LayeredStep:
    """
    Export *step* and cut it into its layers, each fused projection multiplied once.

    Args:
        step: The step; not changed.

        inputs: Example inputs, of which the last are the *cache*.

        cache: The cache.

        equal: The kinds of its layers; None: the whole step is one graph.

        dynamic_shapes: As of :func:`torch.export.export`.

    Raises:
        NotLayered: Its layers read each other's values in other ways than *equal* says.
    """
    layers = len(cache.keys)
    needed = layers if equal is None else equal.needed
    tensors = StepTensors.of(step, inputs, cache, equal)
    shortened = (
        contextlib.nullcontext() if needed == layers else only_first_layers(step.model, needed, layers)
    )
    with trace_fused(step), shortened:
        exported = torch.export.export(step, inputs, strict=False, dynamic_shapes=dynamic_shapes)
    constants = {name: each for name, each in exported.constants.items() if name not in tensors.values}
    # Before the cut: parts would pass complex numbers to each other.
    pair_complex_numbers(exported.graph_module)
    graphs = cut(exported, tensors.placeholders(exported), equal, tensors.roles)
    written: Sequence[str] = exported.graph_signature.user_inputs
    for module in graphs.modules:
        merge_equal_products(module, written)
    return LayeredStep(graphs, tensors, () if equal is None else equal.kinds, constants)
