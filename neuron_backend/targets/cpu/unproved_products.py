"""
Products of a graph whose bits may depend on the number of rows.

Own kernels sum in one order at every width and batch size. Torch's libraries select a kernel by the shape.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

_aten: Any = torch.ops.aten

# Inductor's loops compute all other operations of aten, row by row.
_KNOWN = {"aten", "decodekit", "prims"}

# Each product, and the argument whose last dimension it sums over.
_PRODUCTS = {
    _aten.linear.default: 0,
    _aten.mm.default: 0,
    _aten.bmm.default: 0,
    _aten.matmul.default: 0,
    _aten.addmm.default: 1,
    _aten.baddbmm.default: 1,
    _aten.einsum.default: None,
    _aten._grouped_mm.default: 0,
    _aten.scaled_dot_product_attention.default: 0,
    _aten.mv.default: 0,
    _aten.dot.default: 0,
    _aten.conv1d.default: None,
    _aten.convolution.default: None,
    _aten._scaled_mm.default: 0,
    _aten._weight_int8pack_mm.default: 0,
}


def unproved_products(module: GraphModule) -> tuple[str, ...]:
    """
    The operations of *module* that may sum products by other means than own kernels, each once.

    Operations that neither aten nor decodekit has, such as those of transformers for experts, are among them.

    A product over one number is exact, whatever computes it: rotary tables, for example.
    """
    return tuple(dict.fromkeys(_found(module)))


def _found(module: GraphModule) -> Iterator[str]:
    for node in module.graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        known = node.target.namespace in _KNOWN
        if not known or (node.target in _PRODUCTS and not _is_exact(node)):
            yield str(node.target)


def _is_exact(node: Node) -> bool:
    position = _PRODUCTS[node.target]
    if position is None or node.target is _aten.scaled_dot_product_attention.default:
        return False
    summed: Any = node.args[position]
    return bool(summed.meta["val"].shape[-1] == 1)
