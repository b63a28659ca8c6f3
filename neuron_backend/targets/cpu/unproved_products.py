"""
Products of a graph whose bits may depend on the number of rows.

Own kernels sum in one order at every width and batch size. Torch's libraries select a kernel by the shape.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

_aten: Any = torch.ops.aten

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
    _aten.convolution.default: None,
    _aten._weight_int8pack_mm.default: 0,
    torch.ops.quantized.int4mm_packed_weight_cpu.default: 0,
}


def unproved_products(module: GraphModule) -> tuple[str, ...]:
    """
    The operations of *module* that sum products by other means than own kernels, each once.

    A product over one number is exact, whatever computes it: rotary tables, for example.
    """
    return tuple(dict.fromkeys(_found(module)))


def _found(module: GraphModule) -> Iterator[str]:
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in _PRODUCTS and not _is_exact(node):
            yield str(node.target)


def _is_exact(node: Node) -> bool:
    position = _PRODUCTS[node.target]
    if position is None or node.target is _aten.scaled_dot_product_attention.default:
        return False
    summed: Any = node.args[position]
    return bool(summed.meta["val"].shape[-1] == 1)
