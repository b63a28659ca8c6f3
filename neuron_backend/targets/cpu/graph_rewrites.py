"""
Rewrites of an exported graph to kernels of our own.

They are faster on a CPU, and give a column the same bits at every width and batch size. A rewrite changes
the last bits of logits; every program is compared with the stock model afterwards.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import torch
from torch.fx import GraphModule, Node

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
    for attention in _attentions(module):
        query, mask, scale = attention.query, attention.mask, attention.scale
        keys = _unrepeated(attention.key) or attention.key
        values = _unrepeated(attention.value) or attention.value
        if mask is None or not _fits(kernels, query, keys, values, mask):
            continue
        batch, heads, width, dim = _shape(query)
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


@attrs.frozen
class _Attention:
    """An attention node and its inputs."""

    node: Node
    query: Node
    key: Node
    value: Node
    mask: Node | None
    scale: float | None

    @classmethod
    def of(cls, node: Any) -> "_Attention":
        query, key, value, *rest = node.args
        mask = rest[0] if rest else node.kwargs.get("attn_mask")
        return cls(node, query, key, value, mask, node.kwargs.get("scale"))

    def replace(self, out: Node) -> None:
        self.node.replace_all_uses_with(out)
        # Erased explicitly: it counts as random, so dead-code elimination keeps it.
        self.node.graph.erase_node(self.node)


def _attentions(module: GraphModule) -> Iterator[_Attention]:
    target = _aten.scaled_dot_product_attention.default
    return map(_Attention.of, list(module.graph.find_nodes(op="call_function", target=target)))


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


def group_queries(module: GraphModule) -> None:
    """
    Let the query heads that share a key head attend as rows of one head (grouped-query attention).

    Models repeat keys and values for each query head, which copies the whole cache in every
    forward: without this rewrite, five columns over 1,024 slots take 10 times as long in float32, and
    one column in bfloat16 5 times.
    """
    masks: dict[tuple[Node, int], Node] = {}
    for attention in _attentions(module):
        query, mask = attention.query, attention.mask
        keys, values = _unrepeated(attention.key), _unrepeated(attention.value)
        if keys is None or values is None or mask is None or _shape(mask)[1] != 1:
            continue
        batch, heads, width, dim = _shape(query)
        groups = _shape(keys)[1]
        sharing = heads // groups
        with module.graph.inserting_before(attention.node):
            call = module.graph.call_function
            if (mask, sharing) not in masks:
                with module.graph.inserting_after(mask):
                    masks[mask, sharing] = call(_aten.repeat.default, (mask, [1, 1, sharing, 1]))
            rows = call(_aten.reshape.default, (query, [batch, groups, sharing * width, dim]))
            attended = call(
                _aten.scaled_dot_product_attention.default,
                (rows, keys, values, masks[mask, sharing]),
                {"scale": attention.scale},
            )
            out = call(_aten.reshape.default, (attended, [batch, heads, width, _shape(values)[-1]]))
        attention.replace(out)


def _unrepeated(states: Node) -> Node | None:
    """The keys or values that *states* repeats for each query head; None if it does not repeat any."""
    reshape = states
    if reshape.target not in (_aten.reshape.default, _aten.view.default):
        return None
    expand = reshape.args[0]
    if not isinstance(expand, Node) or expand.target is not _aten.expand.default:
        return None
    unsqueeze = expand.args[0]
    if not isinstance(unsqueeze, Node) or unsqueeze.target is not _aten.unsqueeze.default:
        return None
    groups, repeats = _shape(expand)[1:3]
    single = _shape(unsqueeze)
    if len(single) != 5 or single[2] != 1 or _shape(reshape)[1] != groups * repeats:
        return None
    source = unsqueeze.args[0]
    return source if isinstance(source, Node) else None


def _shape(node: Node) -> list[int]:
    return list(node.meta["val"].shape)
