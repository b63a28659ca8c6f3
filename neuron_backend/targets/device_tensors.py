"""A decoder's tensors on another device."""

import contextlib
from collections import defaultdict
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.node import map_aggregate
from torch.utils.weak import WeakTensorKeyDictionary

from ..kv_cache.buffers import CacheBuffers

# For as long as a tensor of the host lives, its copy serves every program of every decoder, as the
# tensor itself would: a weight is on a device once. With the version it had, which counts writes.
_COPIES: MutableMapping[torch.device, MutableMapping[Tensor, tuple[int, Tensor]]] = defaultdict(
    WeakTensorKeyDictionary
)


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """
    Make *device* the current one of its kind while the body runs.

    TorchNeuron allocates what a program gives on the current device, wherever its inputs lie.
    """
    module: Any = getattr(torch, device.type, None)
    if device.index is None or not hasattr(module, "device"):
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = module.device(device)
    return context


def copy_to(device: torch.device, tensor: Tensor) -> Tensor:
    """
    *tensor* on *device*, the same at every call until somebody writes into *tensor*.

    It is the tensor itself, without a gradient, where it lies there already.
    """
    tensor_there = tensor.detach()
    if tensor.device == device:
        return tensor_there
    copies = _COPIES[device]
    if tensor not in copies or copies[tensor][0] != tensor._version:
        copies[tensor] = tensor._version, tensor_there.to(device)
    return copies[tensor][1]


def place_cache(device: torch.device, cache: CacheBuffers) -> CacheBuffers:
    """*cache* on *device*; the buffers themselves where they lie there already."""
    return CacheBuffers(
        keys=[buffer.to(device) for buffer in cache.keys],
        values=[buffer.to(device) for buffer in cache.values],
        reserved=cache.reserved,
    )


def place_graph(device: torch.device, graph: GraphModule) -> None:
    """
    Let *graph* use copies of its weights and constants, and make new tensors on *device*.

    Args:
        device: Where to.

        graph: What :func:`...lower` made; changed in place. The module that it came from is not.
    """

    def there(argument: Any) -> Any:
        return device if isinstance(argument, torch.device) else argument

    placed = set()
    for node in graph.graph.nodes:
        if node.op == "get_attr" and node.target not in placed:
            placed.add(node.target)
            _place_attribute(device, graph, node.target)
        # Most say it by keyword, conversions by place.
        node.args, node.kwargs = map_aggregate((node.args, node.kwargs), there)
    graph.recompile()


def _place_attribute(device: torch.device, graph: GraphModule, path: str) -> None:
    owner_path, _, name = path.rpartition(".")
    owner = graph.get_submodule(owner_path)
    tensor = getattr(owner, name)
    delattr(owner, name)
    owner.register_buffer(name, copy_to(device, tensor), persistent=False)
