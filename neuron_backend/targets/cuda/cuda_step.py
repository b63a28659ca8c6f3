"""Lowering of a step to the graphs that are compiled for a GPU and recorded."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx import GraphModule, Node

from ...kv_cache.buffers import CacheBuffers
from ...kv_cache.writes import write_by_heads
from ...lowering.export import drop_checks, without_known_warnings
from ...lowering.grouped_queries import group_queries
from ...lowering.step_graphs import static_experts
from ...quantization.quantized_matmul import cuda_matmul
from ...step import Step
from ..layered.equal_layers import EqualLayers, equal_layers
from ..layered.layered_step import LayeredStep, layered_step
from .cuda_top_k import split_top_k

_aten: Any = torch.ops.aten


def kinds_of_layers(step: Step, width: int, span: int, cache: CacheBuffers) -> EqualLayers | None:
    """
    The kinds of layers of *step*, from one forward in which nothing is computed.

    Args:
        step: The step; not changed.

        width: Columns.

        span: Number of leading positions attended to; the kinds are those of every span.

        cache: Cache on the host; defines shapes, and is neither read nor written.

    Returns:
        None if all of the step is to be one graph.
    """
    inputs = step.padding(width, cache, span)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.no_grad(), without_known_warnings(), static_experts(step), fake:
        try:
            return equal_layers(step, inputs, len(cache.states))
        except DataDependentOutputException:
            # The host reads a number that was not computed.
            return None


def lower_for_cuda(
    step: Step, width: int, span: int, cache: CacheBuffers, equal: EqualLayers | None
) -> LayeredStep:
    """
    Lower one program to ATen operations, with attention as one operation for a GPU's kernel.

    Fused projections are one product, and query heads that share a key head attend as rows of one
    head. The cache is written in place.

    Args:
        step: The step to lower; not changed.

        width: Columns.

        span: Number of leading positions attended to.

        cache: Cache on the host; defines batch size and shapes, and is not read.

        equal: The kinds of its layers at this width: each is lowered once. None: all is one graph.

    Returns:
        Graphs on the host that hold no tensors.

    Raises:
        NotLayered: The layers read each other's values in other ways than *equal* says.
    """
    inputs, step = step.padding(width, cache, span), step.writing_with(write_by_heads)
    with torch.no_grad(), without_known_warnings(), static_experts(step), cuda_matmul(step):
        layered = layered_step(step, inputs, cache, equal)
    for module in layered.graphs.modules:
        group_queries(module)
        split_top_k(module)
        module.graph.eliminate_dead_code()
        drop_checks(module)
        module.recompile()
    return layered


def write_into_buffers(module: GraphModule) -> None:
    """
    Let *module* write its results to buffers, its new first inputs, and return nothing.

    Within the graph, so that a fusing compiler needs no separate pass over the logits.
    """
    graph = module.graph
    (output,) = graph.find_nodes(op="output")
    results: tuple[Node, ...] = output.args[0] if isinstance(output.args[0], tuple) else (output.args[0],)
    first = next(iter(graph.nodes))
    for number, result in enumerate(results):
        with graph.inserting_before(first):
            buffer = graph.placeholder(f"buffer_{number}")
            buffer.meta["val"] = result.meta["val"]
        with graph.inserting_before(output):
            graph.call_function(_aten.copy_.default, (buffer, result))
    output.args = ((),)
    module.recompile()
