"""Copies of a decoder's weights, cache and graphs on a device."""

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

# One copy per host tensor, shared by all programs of all decoders while the tensor lives. Kept with the
# tensor's version, which counts writes.
_COPIES: MutableMapping[torch.device, MutableMapping[Tensor, tuple[int, Tensor]]] = defaultdict(
    WeakTensorKeyDictionary
)


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """
    Make *device* the current one of its kind while the body runs.

    TorchNeuron allocates a program's outputs on the current device, whatever its inputs' device.
    """
    module: Any = getattr(torch, device.type, None)
    if device.index is None or not hasattr(module, "device"):
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = module.device(device)
    return context


def copy_to(device: torch.device, tensor: Tensor) -> Tensor:
    """
    A copy of *tensor* on *device*, the same one at every call until *tensor* is written to.

    The detached tensor itself if it is on *device* already.
    """
    detached = tensor.detach()
    if tensor.device == device:
        return detached
    copies = _COPIES[device]
    # Tensors that were made in inference mode count no writes; weights and constants have none.
    version = 0 if tensor.is_inference() else tensor._version
    if tensor not in copies or copies[tensor][0] != version:
        copies[tensor] = version, detached.to(device)
    return copies[tensor][1]


def place_cache(device: torch.device, cache: CacheBuffers) -> CacheBuffers:
    """*cache* on *device*; buffers that are there already are not copied."""
    return cache.map(lambda buffer: buffer.to(device))


def place_graph(device: torch.device, graph: GraphModule) -> None:
    """
    Let *graph* use copies of its weights and constants on *device*, and allocate new tensors there.

    Args:
        device: The device.

        graph: A graph from :func:`~..lowering.export.lower`; changed in place. Its original module is not
            changed.
    """

    def with_device(argument: Any) -> Any:
        return device if isinstance(argument, torch.device) else argument

    placed = set()
    for node in graph.graph.nodes:
        if node.op == "get_attr" and node.target not in placed:
            placed.add(node.target)
            _place_attribute(device, graph, node.target)
        # Most operations take the device by keyword, conversions as a positional argument.
        node.args, node.kwargs = map_aggregate((node.args, node.kwargs), with_device)
    graph.recompile()


def _place_attribute(device: torch.device, graph: GraphModule, path: str) -> None:
    owner_path, _, name = path.rpartition(".")
    owner = graph.get_submodule(owner_path)
    tensor = getattr(owner, name)
    delattr(owner, name)
    owner.register_buffer(name, copy_to(device, tensor), persistent=False)
