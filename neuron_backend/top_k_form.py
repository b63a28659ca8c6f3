"""
Every top-k in the one form that Neuron's compiler knows: two dimensions, along the last, sorted.

Mixtures of experts ask for an unsorted one, which may come in any order, or for one of each group.
"""

import operator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_TOP_K = torch.ops.aten.topk.default


def know_top_k(module: GraphModule) -> None:
    """Change each top-k of *module* that is of the largest, along the last dimension."""
    for node in module.graph.find_nodes(op="call_function", target=_TOP_K):
        operand, k, dim, largest = (*node.args, -1, True)[:4]
        value = operand.meta["val"]
        if not largest or dim not in (-1, value.dim() - 1):
            continue
        node.args, node.kwargs = (operand, k, -1, True, True), {}
        if value.dim() != 2:
            _flatten(module, node, value)
    module.recompile()


def _flatten(module: GraphModule, node: Node, value: Tensor) -> None:
    """Give *node* the rows of *value* in two dimensions, and its users theirs in as many as before."""
    outer = list(value.shape[:-1])
    with module.graph.inserting_before(node):
        rows = _reshape(module, node.args[0], [-1, value.shape[-1]])
    node.update_arg(0, rows)
    node.meta["val"] = _TOP_K(rows.meta["val"], *node.args[1:])
    for user in list(node.users):
        assert user.target is operator.getitem
        user.meta["val"] = node.meta["val"][user.args[1]]
        with module.graph.inserting_after(user):
            whole = _reshape(module, user, [*outer, node.args[1]])
        user.replace_all_uses_with(whole, delete_user_cb=lambda other, own=whole: other is not own)


def _reshape(module: GraphModule, source: Node, shape: list[int]) -> Node:
    reshaped = module.graph.call_function(torch.ops.aten.reshape.default, (source, shape))
    reshaped.meta["val"] = source.meta["val"].reshape(shape)
    return reshaped
