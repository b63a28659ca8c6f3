"""
Rewrite of complex arithmetic in a graph to pairs of real tensors.

Some models (Llama-4, DeepSeek-V2) apply RoPE by complex multiplication, which Neuron's compiler does not
support (NCC_EVRF004).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten

Pair = tuple[Any, Any]
"""Real and imaginary part, each a node or a number."""

# Layout operations apply to both parts alike.
_MOVES = {
    aten.alias.default,
    aten.clone.default,
    aten.expand.default,
    aten.permute.default,
    aten.reshape.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.squeeze.dims,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.view.default,
}

_CONVERSIONS = {aten.to.device, aten.to.dtype, aten.to.dtype_layout}

_CHECK = aten._assert_tensor_metadata.default


def pair_complex_numbers(module: GraphModule) -> None:
    """
    Replace every complex value in *module* by its real and imaginary part.

    If an operation on complex numbers is not supported here, *module* is left unchanged.
    """
    concerned = [node for node in module.graph.nodes if _is_complex(node) or _takes_complex(node)]
    if not all(map(_is_known, concerned)):
        return
    pairs: dict[Node, Pair] = {}
    for node in concerned:
        with module.graph.inserting_before(node):
            outcome = _rewritten(_Arithmetic(node), node, pairs)
        if isinstance(outcome, tuple):
            pairs[node] = outcome
        elif outcome is not None:
            node.replace_all_uses_with(outcome)
    for node in reversed(concerned):
        module.graph.erase_node(node)
    module.recompile()


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_complex()


def _takes_complex(node: Node) -> bool:
    return any(_is_complex(source) for source in node.all_input_nodes)


def _is_known(node: Node) -> bool:
    return node.target in {*_MOVES, *_RULES, _CHECK} or is_no_conversion(node)


def is_no_conversion(node: Node) -> bool:
    """Whether *node* converts to the dtype and device that its argument has."""
    if node.target not in _CONVERSIONS:
        return False
    before, after = node.all_input_nodes[0].meta["val"], node.meta["val"]
    return bool(before.dtype == after.dtype and before.device == after.device)


class _Arithmetic:
    """Adds operations in place of a node, with the metadata of their results."""

    def __init__(self, replaced: Node):
        self._replaced = replaced

    def __call__(self, operation: Any, *args: Any, **kwargs: Any) -> Node:
        node = self._replaced.graph.call_function(operation, args, kwargs)
        # The module that it was traced in, among others.
        node.meta = dict(self._replaced.meta)
        values = torch.fx.node.map_arg(args, lambda source: source.meta["val"])
        node.meta["val"] = operation(*values, **kwargs)
        return node


def _rewritten(call: _Arithmetic, node: Node, pairs: dict[Node, Pair]) -> Pair | Node | None:
    args: tuple[Any, ...] = node.args
    if node.target is _CHECK:
        return None
    if is_no_conversion(node):
        return pairs[args[0]]
    if node.target in _MOVES:
        real, imaginary = (call(node.target, part, *args[1:], **node.kwargs) for part in pairs[args[0]])
        return real, imaginary
    return _RULES[node.target](call, *(pairs.get(each, each) for each in args))


def _polar(call: _Arithmetic, length: Node, angle: Node) -> Pair:
    def part(function: Any) -> Node:
        return call(aten.mul.Tensor, length, call(function, angle))

    return part(aten.cos.default), part(aten.sin.default)


def _from_last(call: _Arithmetic, parts: Node) -> Pair:
    return call(aten.select.int, parts, -1, 0), call(aten.select.int, parts, -1, 1)


def _to_last(call: _Arithmetic, number: Pair) -> Node:
    return call(aten.cat.default, [call(aten.unsqueeze.default, part, -1) for part in number], -1)


def _product(call: _Arithmetic, left: Any, right: Any) -> Pair:
    def times(one: Any, other: Any) -> Node:
        return call(aten.mul.Tensor, one, other)

    if not isinstance(left, tuple):
        left, right = right, left
    real, imaginary = left
    if not isinstance(right, tuple):
        return times(real, right), times(imaginary, right)
    return (
        call(aten.sub.Tensor, times(real, right[0]), times(imaginary, right[1])),
        call(aten.add.Tensor, times(real, right[1]), times(imaginary, right[0])),
    )


_RULES: dict[Any, Callable[..., Pair | Node]] = {
    aten.mul.Tensor: _product,
    aten.polar.default: _polar,
    aten.view_as_complex.default: _from_last,
    aten.view_as_real.default: _to_last,
}
