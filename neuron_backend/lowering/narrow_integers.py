"""
Rewrite of a graph's int64 to int32.

Neuron devices do not support int64 properly: neuronx-cc's treatment of it differs between versions, and the
initial value of an int64 reduction (2^63 - 1 for a minimum) does not fit into int32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_NARROW = torch.iinfo(torch.int32)


def narrow_to_int32(module: GraphModule) -> None:
    """
    Make *module* compute in int32 instead of int64.

    Args:
        module: Result of :func:`.export.lower`; changed in place. Its int64 inputs and outputs become int32
            as well.

    Raises:
        OverflowError: A constant does not fit.
    """
    for node in list(module.graph.nodes):
        # The end of an open slice is the largest int64.
        if node.op == "call_function" and node.target is not torch.ops.aten.slice.Tensor:
            torch.fx.node.map_aggregate((node.args, node.kwargs), _check_number)
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value.dtype != torch.int64:
            continue
        narrowed = node
        if node.op == "get_attr":
            _narrow_constant(module, str(node.target))
        elif node.op == "call_function" and _has_dtype(node):
            node.kwargs = {**node.kwargs, "dtype": torch.int32}
        elif node.op == "call_function" and not _takes_integers(node):
            # Results that are always int64, such as the indices of a top-k.
            with module.graph.inserting_after(node):
                narrowed = module.graph.call_function(torch.ops.aten._to_copy.default, (node,))
            node.replace_all_uses_with(narrowed, delete_user_cb=lambda user, new=narrowed: user is not new)
            narrowed.kwargs = {"dtype": torch.int32}
        narrowed.meta["val"] = value.to(torch.int32)
    module.recompile()


def _narrow_constant(module: GraphModule, path: str) -> None:
    owner_path, _, name = path.rpartition(".")
    owner = module.get_submodule(owner_path)
    tensor: Tensor = getattr(owner, name)
    if tensor.dtype != torch.int64:
        # Already narrowed for another node.
        return
    for extreme in (tensor.min(), tensor.max()) if tensor.numel() else ():
        _check_number(int(extreme))
    delattr(owner, name)
    owner.register_buffer(name, tensor.to(torch.int32))


def _check_number(value: Any) -> None:
    if isinstance(value, int) and not _NARROW.min <= value <= _NARROW.max:
        raise OverflowError(f"integers must fit into 32 bits: got {value}")


def _has_dtype(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(argument.name == "dtype" for argument in schema.arguments)


def _takes_integers(node: Node) -> bool:
    """Whether *node* returns int64 because an input was int64 (narrowed by now)."""
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return any(isinstance(value, Tensor) and value.dtype == torch.int32 for value in values)
