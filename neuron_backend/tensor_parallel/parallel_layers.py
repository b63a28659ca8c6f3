"""
Communication of sharded layers: all-reduce, gather, split of inputs, sharded embedding.

These are hooks on the model's own layers. No shape and no operation depends on the rank, which is held in a
buffer, so a program compiled by one rank serves all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from .process_group import PROGRAM_GROUP
from .ranks import Ranks

OWN_RANK = "own_rank"
"""
Name of the buffer that is True at this rank's index.

It is part of the state dict, so that compilers treat it like a weight.
"""

# Compilers inline shorter constants into the code, which would then fit one rank only.
_LONG = 64

_sums: dict[str, Callable[[Tensor], Tensor]] = {}


@contextmanager
def override_all_reduce(group: str, total: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Use *total* as the all-reduce of *group*, which need not be the name of a process group."""
    _sums[group] = total
    try:
        yield
    finally:
        del _sums[group]


def all_reduce(partial: Tensor, group: str) -> Tensor:
    """Sum of *partial* over the ranks of process group *group*, bit-identical on every rank."""
    if torch.compiler.is_compiling():
        group = PROGRAM_GROUP
    elif group in _sums:
        return _sums[group](partial.contiguous())
    started = torch.ops._c10d_functional.all_reduce(partial.contiguous(), "sum", group)
    total: Tensor = torch.ops._c10d_functional.wait_tensor(started)
    return total


def register_rank(module: nn.Module, ranks: Ranks) -> None:
    """Register the buffer :data:`OWN_RANK` in *module*."""
    device = next(module.parameters()).device
    module.register_buffer(OWN_RANK, torch.arange(max(ranks.degree, _LONG), device=device) == ranks.rank)


def is_rank_buffer(name: str) -> bool:
    """Whether *name* in a state dict is that of an :data:`OWN_RANK` buffer."""
    return name.rpartition(".")[2] == OWN_RANK


@attrs.frozen
class AllReduce:
    """All-reduce of a layer's output: for layers whose input dimension is sharded."""

    group: str

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """A forward hook."""
        return all_reduce(output, self.group)


@attrs.frozen
class Gather:
    """Concatenation of the ranks' outputs to ``[..., size]``, for a layer with sharded output dimension."""

    ranks: Ranks
    size: int

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """A forward hook."""
        own = module.get_buffer(OWN_RANK)[: self.ranks.degree, None]
        # An all-reduce with zeros, which is exact: compiled programs have no all-gather.
        placed = torch.where(own, output[..., None, :], 0)
        # Flattened after the sum: a program must not return the tensor that it passed to gloo.
        return all_reduce(placed, self.ranks.group).flatten(-2)[..., : self.size]


@attrs.frozen
class TakeShard:
    """Split of a layer's replicated input, for layers whose input dimension is sharded."""

    ranks: Ranks

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A forward pre-hook."""
        states, *others = inputs
        own = module.get_buffer(OWN_RANK)[: self.ranks.degree, None]
        parts = states.view(*states.shape[:-1], self.ranks.degree, -1)
        return torch.where(own, parts, 0).sum(-2), *others


class ShardedEmbedding:
    """
    Embedding lookup in this rank's rows, all-reduced over the ranks.

    A mix-in for the embedding's own class, since some embeddings scale their output.
    """

    ranks: Ranks
    weight: Tensor
    own_rank: Tensor
    """:data:`OWN_RANK`."""

    def forward(self, ids: Tensor) -> Tensor:
        """``[..., hidden]`` of *ids* ``[...]``."""
        rows, degree = self.weight.shape[0], self.ranks.degree
        # By the first row's index rather than dividing ids, which Neuron does in float64 only.
        first = torch.where(self.own_rank[:degree], torch.arange(degree, device=ids.device) * rows, 0)
        local = ids - first.sum()
        own = (local >= 0) & (local < rows)
        found: Tensor = super().forward(torch.where(own, local, 0))  # type: ignore[misc]  # the embedding's
        return all_reduce(torch.where(own[..., None], found, 0), self.ranks.group)


def shard_embedding(module: nn.Embedding, ranks: Ranks) -> None:
    """Turn *module*, whose weight is one rank's rows, into a :class:`ShardedEmbedding`."""
    stock = type(module)
    module.__class__ = type(f"Divided{stock.__name__}", (ShardedEmbedding, stock), {"ranks": ranks})
    module.padding_idx = None
