"""
Rewrites of an exported graph to kernels of our own.

They are faster on a CPU, and give a column the same bits at every width and batch size. A rewrite changes
the last bits of logits; every program is compared with the stock model afterwards.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...lowering.attention_nodes import attentions, shape_of, unrepeated
from ...lowering.grouped_queries import group_queries
from .kernel_library import NO_LIBRARY, Kernels
from .kernel_operations import has_rows
from .product_rewrites import multiply_with_kernels, select_with_kernels

_aten: Any = torch.ops.aten


def rewrite_graph(module: GraphModule, kernels: Kernels = NO_LIBRARY) -> None:
    """
    Apply all rewrites to the graph of *module*, as exported by ``torch.export``, in place.

    Args:
        module: The module.

        kernels: Own kernels, which are called for the inputs that they take.
    """
    _attend_with_kernels(module, kernels)
    group_queries(module)
    multiply_with_kernels(module, kernels)
    select_with_kernels(module, kernels)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()


def _attend_with_kernels(module: GraphModule, kernels: Kernels) -> None:
    """Replace attention by a kernel that reads keys and values once, of used slots only."""
    for attention in attentions(module):
        query, mask, scale = attention.query, attention.mask, attention.scale
        keys, values = unrepeated(attention.key), unrepeated(attention.value)
        # Both in as many groups: a model may repeat them in different orders.
        if keys is None or values is None or shape_of(keys)[1] != shape_of(values)[1]:
            keys, values = attention.key, attention.value
        if mask is None or not _fits(kernels, query, keys, values, mask):
            continue
        batch, heads, width, dim = shape_of(query)
        with module.graph.inserting_before(attention.node):
            call = module.graph.call_function
            columns = call(_aten.transpose.int, (query, 1, 2))
            columns = call(_aten.clone.default, (columns,), {"memory_format": torch.contiguous_format})
            masks = call(_aten.expand.default, (mask, [batch, heads, width, -1]))
            scale = dim**-0.5 if scale is None else scale
            keys, values = (_with_rows(each) for each in (keys, values))
            attend = torch.ops.decodekit.attention.default
            attended = call(attend, (columns, keys, values, masks, None, float(scale), 0.0))
            out = call(_aten.transpose.int, (attended, 1, 2))
        attention.replace(out)


def _fits(kernels: Kernels, query: Node, keys: Node, values: Node, mask: Node) -> bool:
    """Whether the attention kernel takes these inputs."""
    states = [keys.meta["val"], values.meta["val"]]
    added = mask.meta["val"]
    dtype = query.meta["val"].dtype
    return (
        kernels.takes(dtype)
        and all(tensor.dtype == dtype for tensor in (*states, added))
        and added.dim() == 4
        and added.stride(3) == 1
    )


def _with_rows(states: Node) -> Node:
    """The keys or values with their slots one after the other in memory."""
    if has_rows(states.meta["val"]):
        return states
    clone: Node = states.graph.call_function(
        _aten.clone.default, (states,), {"memory_format": torch.contiguous_format}
    )
    return clone
