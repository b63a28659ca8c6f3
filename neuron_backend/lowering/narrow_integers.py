"""
A graph in 32 bits.

Neuron devices have no int64 to speak of: what neuronx-cc makes of one changes from version to version,
and what a reduction over int64 begins with (2^63 - 1 of a minimum) does not fit into int32 at all.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_NARROW = torch.iinfo(torch.int32)


def narrow_integers(module: GraphModule) -> None:
    """
    Let *module* compute in int32 whatever it computes in int64.

    Args:
        module: What :func:`.export.lower` made; changed in place. Afterwards its inputs and outputs
            are int32 too where they were int64.

    Raises:
        OverflowError: A constant does not fit.
    """
    for node in list(module.graph.nodes):
        # The end of a slice is as large as can be where it is left open.
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
            # Such as the indices of a top-k, which are int64 of whatever is given.
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
        # Another node has been here.
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
    """Whether it gives int64 because it was given int64."""
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return any(isinstance(value, Tensor) and value.dtype == torch.int32 for value in values)
