"""Lowering of a step to the graph that is compiled for a GPU and recorded."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from ...kv_cache.buffers import CacheBuffers
from ...lowering.complex_pairs import pair_complex_numbers
from ...lowering.export import drop_checks, without_known_warnings
from ...lowering.step_graphs import static_experts
from ...models.fused_projections import merge_equal_products, trace_fused
from ...quantization.quantized_matmul import cuda_matmul
from ...step import CacheProgram
from ..cpu.graph_rewrites import group_queries
from .cuda_staging import TensorSpec


class StepIntoBuffers(nn.Module):
    """A step that writes its results to output buffers, which precede its inputs."""

    def __init__(self, step: CacheProgram, num_outputs: int):
        """Wrap *step*, which returns *num_outputs* tensors."""
        super().__init__()
        self.step = step
        self._num_outputs = num_outputs

    def forward(self, *tensors: Tensor) -> None:
        """Run the step; *tensors* are the output buffers, then the step's inputs."""
        buffers, inputs = tensors[: self._num_outputs], tensors[self._num_outputs :]
        results = self.step(*inputs)
        # Within the graph, so that a fusing compiler needs no separate pass over the logits.
        for buffer, result in zip(
            buffers, results if isinstance(results, tuple) else (results,), strict=True
        ):
            buffer.copy_(result)


def lower_for_cuda(
    step: CacheProgram, width: int, span: int, cache: CacheBuffers, outputs: Sequence[TensorSpec]
) -> GraphModule:
    """
    Lower one program to ATen operations, with attention as one operation for a GPU's kernel.

    Fused projections are one product, and query heads that share a key head attend as rows of one
    head. The cache is written in place.

    Args:
        step: The step to lower; not changed.

        width: Columns.

        span: Number of leading positions attended to.

        cache: Cache on the host; defines batch size and shapes, and is not read.

        outputs: Shapes and dtypes of the step's results.

    Returns:
        A module that takes buffers for *outputs*, then the step's inputs, and returns nothing. It shares
        the step's parameters, and is on the host.
    """
    buffers = [torch.empty(spec.shape, dtype=spec.dtype) for spec in outputs]
    inputs = (*buffers, *step.padding(width, cache, span))
    with (
        torch.no_grad(),
        without_known_warnings(),
        static_experts(step),
        cuda_matmul(step),
        trace_fused(step),
    ):
        exported = torch.export.export(StepIntoBuffers(step, len(buffers)), inputs, strict=False)
        merge_equal_products(exported.graph_module, exported.graph_signature.user_inputs)
        group_queries(exported.graph_module)
        exported.graph_module.graph.eliminate_dead_code()
        exported.graph_module.recompile()
        lowered = exported.module()
    assert isinstance(lowered, GraphModule)
    drop_checks(lowered)
    pair_complex_numbers(lowered)
    lowered.recompile()
    return lowered
