"""Indices that a graph fixes when it is compiled, compared with the dimension that they index."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..lowering.export import name_of

# The index, and what is indexed, follow in this order.
_WRITES = {"scatter", "scatter_add", "scatter_reduce", "index_copy", "index_add", "index_reduce"}
_READS = {"gather", "index_select"}

# Operations that keep every element of their operand, and add none.
_SAME_VALUES = {
    "_to_copy", "alias", "clone", "expand", "permute", "reshape", "squeeze", "transpose", "unsqueeze", "view",
}  # fmt: skip


def writes_out_of_bounds(node: Node) -> bool:
    """Whether a write has a fixed index beyond its dimension."""
    return _exceeds(_indices(node, _WRITES, "index_put"))


def reads_out_of_bounds(node: Node) -> bool:
    """Whether a read has a fixed index beyond its dimension."""
    if node.op == "call_function" and name_of(node) == "embedding":
        table, index = node.args[:2]
        return _exceeds([(_shape(table)[0], index)])
    return _exceeds(_indices(node, _READS, "index"))


def _exceeds(indices: Any) -> bool:
    return any(largest >= size for size, index in indices if (largest := _largest(index)) is not None)


def _indices(node: Node, along_one: set[str], of_several: str) -> Iterator[tuple[int, Any]]:
    """Size of each dimension that is indexed, and its index."""
    if node.op != "call_function":
        return
    arguments: Any = node.args
    if name_of(node) in along_one:
        yield _shape(arguments[0])[arguments[1]], arguments[2]
    elif name_of(node).removeprefix("_unsafe_") == of_several:
        yield from zip(_shape(arguments[0]), arguments[1], strict=False)


def _shape(node: Any) -> torch.Size:
    shape: torch.Size = node.meta["val"].shape
    return shape


def _largest(node: Any) -> int | None:
    """The largest element of an index; None if it is not fixed, or a mask."""
    while isinstance(node, Node) and node.op == "call_function" and name_of(node) in _SAME_VALUES:
        node = node.args[0]
    value = _fixed(node)
    if value is None or value.dtype == torch.bool or not value.numel():
        return None
    return int(value.max())


def _fixed(node: Any) -> Tensor | None:
    if not isinstance(node, Node):
        return None
    if node.op == "get_attr":
        value = attrgetter(str(node.target))(node.graph.owning_module)
        return value if isinstance(value, Tensor) and value.device.type != "meta" else None
    if node.op == "call_function" and name_of(node) == "arange" and not node.all_input_nodes:
        bounds: Any = node.args
        return torch.arange(*bounds)
    return None
