"""Rewrites of products by weights, and of the selection of experts, to own kernels."""

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from .kernel_library import DTYPES, Kernels

_aten: Any = torch.ops.aten

# Of a matrix, without further arguments.
_TRANSPOSES = {_aten.numpy_T.default, _aten.t.default}


def multiply_with_kernels(module: GraphModule, kernels: Kernels) -> None:
    """Replace linear layers, with weights ``[out, in]`` or ``[in, out]``, and those of all experts."""
    for node in module.graph.find_nodes(op="call_function", target=_aten.linear.default):
        x, weight, *bias = node.args
        _replace(node, x, weight, bias[0] if bias else None, torch.ops.decodekit.float_gemm.default, kernels)
    for node in module.graph.find_nodes(op="call_function", target=_aten.matmul.default):
        x, transposed = node.args
        if transposed.target in _TRANSPOSES and (weight := transposed.args[0]).meta["val"].dim() == 2:
            _replace(node, x, weight, None, torch.ops.decodekit.float_gemm.default, kernels)
    for node in module.graph.find_nodes(op="call_function", target=_aten.addmm.default):
        bias, x, weight = node.args
        if not node.kwargs:
            _replace(node, x, weight, bias, torch.ops.decodekit.column_gemm.default, kernels)
    for node in module.graph.find_nodes(op="call_function", target=_aten.bmm.default):
        _multiply_by_all_experts(node, kernels)


def _multiply_by_all_experts(node: Node, kernels: Kernels) -> None:
    x, weights = cast(tuple[Node, Node], node.args)
    if not _fits(x, weights, kernels):
        return
    value, weight = x.meta["val"], weights.meta["val"]
    experts, rows, inputs = value.shape
    with node.graph.inserting_before(node):
        call = node.graph.call_function
        flat = _rows(node, x, (experts * rows, inputs), value.is_contiguous())
        numbers = call(_aten.arange.default, (experts,))
        numbers = call(_aten.expand.default, (call(_aten.unsqueeze.default, (numbers, 1)), [experts, rows]))
        numbers = call(_aten.clone.default, (numbers,), {"memory_format": torch.contiguous_format})
        numbers = call(_aten.reshape.default, (numbers, [experts * rows]))
        out = call(torch.ops.decodekit.expert_gemm.default, (flat, numbers, weights, True, 0))
        out = call(_aten.reshape.default, (out, [experts, rows, weight.shape[2]]))
    out.meta = dict(node.meta)
    node.replace_all_uses_with(out)
    node.graph.erase_node(node)


def _replace(node: Node, x: Node, weight: Node, bias: Node | None, operation: Any, kernels: Kernels) -> None:
    if not _fits(x, weight, kernels):
        return
    graph, value = node.graph, x.meta["val"]
    rows = value.reshape(-1, value.shape[-1])
    with graph.inserting_before(node):
        call = graph.call_function
        out = call(operation, (_rows(node, x, rows.shape, rows.is_contiguous()), weight))
        out = call(_aten.reshape.default, (out, _sizes(node.meta["val"].shape)))
        if bias is not None:
            out = call(_aten.add.Tensor, (out, bias))
    # The next linear layer may read it.
    out.meta = dict(node.meta)
    node.replace_all_uses_with(out)
    graph.erase_node(node)


def _fits(x: Node, weight: Node, kernels: Kernels) -> bool:
    """Whether kernels multiply *x* by *weight*: not by weights that the graph dequantises."""
    value, weights = x.meta["val"], weight.meta["val"]
    kept = weight.op == "placeholder" and weights.dtype == value.dtype and weights.is_contiguous()
    return kept and kernels.takes(value.dtype)


def _rows(node: Node, x: Node, shape: Sequence[int], contiguous: bool) -> Node:
    call = node.graph.call_function
    flat = call(_aten.reshape.default, (x, _sizes(shape)))
    if contiguous:
        return flat
    return call(_aten.clone.default, (flat,), {"memory_format": torch.contiguous_format})


def _sizes(shape: Sequence[int]) -> list[int]:
    """The sizes to reshape to: the one that depends on the number of slots is inferred."""
    return [size if isinstance(size, int) else -1 for size in shape]


def select_with_kernels(module: GraphModule, kernels: Kernels) -> None:
    """Replace top-k over the last dimension, which mixtures of experts select theirs by."""
    if not any(map(kernels.takes, DTYPES)):
        return
    for node in module.graph.find_nodes(op="call_function", target=_aten.topk.default):
        x, k, *options = node.args
        value = x.meta["val"]
        last = not options or options[0] in (-1, value.dim() - 1)
        if (
            not last
            or False in options[1:2]
            or node.kwargs.get("largest") is False
            or value.dtype not in DTYPES
        ):
            continue
        _select(node, x, k)


def _select(node: Node, x: Node, k: int) -> None:
    graph, value = node.graph, x.meta["val"]
    shape = [*value.shape[:-1], k]
    rows = value.reshape(-1, value.shape[-1])
    with graph.inserting_before(node):
        call = graph.call_function
        # Exact for all dtypes.
        numbers = call(_aten._to_copy.default, (x,), {"dtype": torch.float32})
        flat = _rows(node, numbers, rows.shape, False)
        found = call(torch.ops.decodekit.top_k.default, (flat, k))
        parts = [
            call(_aten.reshape.default, (call(operator.getitem, (found, part)), shape)) for part in (0, 1)
        ]
        parts[0] = call(_aten._to_copy.default, (parts[0],), {"dtype": value.dtype})
    for user in list(node.users):
        part = cast(int, user.args[1])
        parts[part].meta = dict(user.meta)
        user.replace_all_uses_with(parts[part])
        graph.erase_node(user)
    graph.erase_node(node)
