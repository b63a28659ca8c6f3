"""
Writes of one forward's states into a cache buffer, in the form that each compiler performs in place.

Padding columns of a row overwrite each other in the spare slot, which no token attends to.
"""

from collections.abc import Callable

import torch
from torch import Tensor

CacheWrite = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Buffer, rows, slots, states ``[batch, heads, width, head_dim]`` to the buffer with the states written."""


def write_in_place(buffer: Tensor, rows: Tensor, slots: Tensor, states: Tensor) -> Tensor:
    """Write into *buffer* itself, as eager PyTorch and Inductor's C++ loops do without a copy."""
    buffer.transpose(1, 2).index_put_((rows, slots), states.transpose(1, 2))
    return buffer


def write_by_heads(buffer: Tensor, rows: Tensor, slots: Tensor, states: Tensor) -> Tensor:
    """
    Write into *buffer* itself, indexed by all dimensions but head_dim.

    For a GPU: there torch.compile copies the whole buffer, twice, where it is written through a view
    (torch 2.11).
    """
    return buffer.index_put_(_by_heads(buffer, rows, slots), states)


def write_by_scatter(buffer: Tensor, rows: Tensor, slots: Tensor, states: Tensor) -> Tensor:
    """
    Write into *buffer* itself, as one scatter along the slots.

    For TorchNeuron, which flattens the buffer of an ``index_put`` (parmoham-aws/test-repo-parmoham 98154b8,
    decompositions.py, ``index_put_decomposition``) but leaves a scatter as it is. Inductor would copy the
    whole buffer for a scatter.
    """
    return buffer.scatter_(2, slots[:, None, :, None].expand(states.shape), states)


def write_copy(buffer: Tensor, rows: Tensor, slots: Tensor, states: Tensor) -> Tensor:
    """Return a new buffer, for compilers that alias a graph's outputs with its inputs."""
    # Without a transpose, compilers can write in place.
    return buffer.index_put(_by_heads(buffer, rows, slots), states)


def _by_heads(buffer: Tensor, rows: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    heads = torch.arange(buffer.shape[1], dtype=slots.dtype, device=slots.device)[:, None]
    return rows[:, None], heads, slots[:, None]
