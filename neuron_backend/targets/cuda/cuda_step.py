"""From a step to the graph that is compiled for a GPU and recorded."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from ...kv_cache.buffers import CacheBuffers
from ...lowering.complex_pairs import pair_complex_numbers
from ...lowering.export import drop_checks, without_known_warnings
from ...lowering.step_graphs import static_experts
from ...models.fused_projections import merge_products, traced_fused
from ...quantization.quantized_matmul import cuda_products
from ...step import Step
from ..cpu.graph_rewrites import group_queries
from .cuda_staging import TensorSpec


class StepIntoBuffers(nn.Module):
    """A step whose results go into tensors that it is given, in front of its inputs."""

    def __init__(self, step: Step, made: int):
        """Wrap *step*, which gives so many tensors."""
        super().__init__()
        self.step = step
        self._made = made

    def forward(self, *tensors: Tensor) -> None:
        """Places of the results, then what the step takes."""
        places, inputs = tensors[: self._made], tensors[self._made :]
        results = self.step(*inputs)
        # Within the graph: no pass over the logits of its own, for a compiler that fuses.
        for place, result in zip(places, results if isinstance(results, tuple) else (results,), strict=True):
            place.copy_(result)


def lower_for_cuda(
    step: Step, width: int, span: int, cache: CacheBuffers, made: Sequence[TensorSpec]
) -> GraphModule:
    """
    The graph of one program as ATen operations, the attention whole, so that a GPU's kernels serve it.

    Projections that were joined are one product, and query heads that share a key head attend as
    rows of one. The cache is written in place, wherever in the graph that is.

    Args:
        step: What to lower. It stays as it is.

        width: Columns.

        span: How many leading positions are attended to.

        cache: On the host; says batch and shapes, and is not read.

        made: What the step gives.

    Returns:
        A module of places for *made*, and of the step's inputs, that gives nothing. It shares the
        parameters, and is on the host.
    """
    places = [torch.empty(place.shape, dtype=place.dtype) for place in made]
    inputs = (*places, *step.padding(width, cache, span))
    with (
        torch.no_grad(),
        without_known_warnings(),
        static_experts(step.model),
        cuda_products(step),
        traced_fused(step),
    ):
        exported = torch.export.export(StepIntoBuffers(step, len(places)), inputs, strict=False)
        merge_products(exported.graph_module, exported.graph_signature.user_inputs)
        group_queries(exported.graph_module)
        exported.graph_module.graph.eliminate_dead_code()
        exported.graph_module.recompile()
        lowered = exported.module()
    assert isinstance(lowered, GraphModule)
    drop_checks(lowered)
    pair_complex_numbers(lowered)
    lowered.recompile()
    return lowered
