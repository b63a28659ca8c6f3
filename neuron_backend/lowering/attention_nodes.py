"""Attention in a graph as exported by ``torch.export``."""

from collections.abc import Iterator
from typing import Any

import attrs
import torch
from torch.fx import GraphModule, Node

_aten: Any = torch.ops.aten


@attrs.frozen
class Attention:
    """An attention node and its inputs."""

    node: Node
    query: Node
    key: Node
    value: Node
    mask: Node | None
    scale: float | None

    @classmethod
    def of(cls, node: Any) -> "Attention":
        """Of a call of ``scaled_dot_product_attention``."""
        query, key, value, *rest = node.args
        mask = rest[0] if rest else node.kwargs.get("attn_mask")
        return cls(node, query, key, value, mask, node.kwargs.get("scale"))

    def replace(self, out: Node) -> None:
        """Let *out* take its place, and remove it."""
        self.node.replace_all_uses_with(out)
        # Erased explicitly: it counts as random, so dead-code elimination keeps it.
        self.node.graph.erase_node(self.node)


def attentions(module: GraphModule) -> Iterator[Attention]:
    """All of a graph, which may be rewritten meanwhile."""
    target = _aten.scaled_dot_product_attention.default
    return map(Attention.of, list(module.graph.find_nodes(op="call_function", target=target)))


def unrepeated(states: Node) -> Node | None:
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
    groups, repeats = shape_of(expand)[1:3]
    single = shape_of(unsqueeze)
    if len(single) != 5 or single[2] != 1 or shape_of(reshape)[1] != groups * repeats:
        return None
    source = unsqueeze.args[0]
    return source if isinstance(source, Node) else None


def shape_of(node: Node) -> list[int]:
    """The shape of its value."""
    return list(node.meta["val"].shape)
