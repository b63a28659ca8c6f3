"""
Rewrite of top-k to the form that Neuron's compiler supports: two dimensions, along the last, sorted.

Mixtures of experts use an unsorted top-k, for which any order is valid, or one over groups.
"""

import operator
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

_TOP_K = torch.ops.aten.topk.default


def canonicalize_top_k(module: GraphModule) -> None:
    """Rewrite each top-k of the largest values along the last dimension in *module*."""
    for node in module.graph.find_nodes(op="call_function", target=_TOP_K):
        arguments: tuple[Any, ...] = node.args
        operand, k, dim, largest = (*arguments, -1, True)[:4]
        dimensions = operand.meta["val"].dim()
        if not largest or dim not in (-1, dimensions - 1):
            continue
        node.args, node.kwargs = (operand, k, -1, True, True), {}
        if dimensions != 2:
            _flatten(module, node, operand, k)
    module.recompile()


def _flatten(module: GraphModule, node: Node, operand: Node, k: int) -> None:
    """Reshape *operand* to two dimensions for the top-k *node*, and its results back."""
    *outer, last = operand.meta["val"].shape
    with module.graph.inserting_before(node):
        rows = _reshape(module, operand, [-1, last])
    node.update_arg(0, rows)
    node.meta["val"] = _TOP_K(rows.meta["val"], k)
    for user in list(node.users):
        which: Any = user.args[1]
        user.meta["val"] = node.meta["val"][which]
        with module.graph.inserting_after(user):
            whole = _reshape(module, user, [*outer, k])
        user.replace_all_uses_with(whole, delete_user_cb=partial(operator.is_not, whole))


def _reshape(module: GraphModule, source: Node, shape: list[int]) -> Node:
    reshaped = module.graph.call_function(torch.ops.aten.reshape.default, (source, shape))
    reshaped.meta["val"] = source.meta["val"].reshape(shape)
    return reshaped
