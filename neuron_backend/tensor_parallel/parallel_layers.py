"""
What layers do besides, when each rank holds a part of their weights.

They are hooks on the model's own layers. No shape and no operation depends on the rank, so a program
that one rank has compiled serves all of them: which rank this is, is in a buffer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from .ranks import PROGRAMS, Ranks

OWN = "own_rank"
"""The buffer of a layer that is true at this rank's number. It is part of the state dict, so that
compilers hand it over with the weights."""

# Compilers write shorter constants into the code, which would then be one rank's.
_LONG = 64

_sums: dict[str, Callable[[Tensor], Tensor]] = {}


@contextmanager
def summing(group: str, total: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let *total* make the sums of *group*, which is then no process group's name."""
    _sums[group] = total
    try:
        yield
    finally:
        del _sums[group]


def all_reduce(partial: Tensor, group: str) -> Tensor:
    """The sum of *partial* over the ranks of the process group of that name: the same bits on each."""
    if torch.compiler.is_compiling():
        group = PROGRAMS
    elif group in _sums:
        return _sums[group](partial.contiguous())
    started = torch.ops._c10d_functional.all_reduce(partial.contiguous(), "sum", group)
    total: Tensor = torch.ops._c10d_functional.wait_tensor(started)
    return total


def mark_rank(module: nn.Module, ranks: Ranks) -> None:
    """Give *module* the buffer that says which rank this is."""
    device = next(module.parameters()).device
    module.register_buffer(OWN, torch.arange(max(ranks.degree, _LONG), device=device) == ranks.rank)


def is_rank(name: str) -> bool:
    """Whether *name*, in a state dict, is such a buffer's."""
    return name.rpartition(".")[2] == OWN


@attrs.frozen
class Reduce:
    """Sum what a layer gives over the ranks: its inputs are divided."""

    group: str

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """A forward hook."""
        return all_reduce(output, self.group)


@attrs.frozen
class Gather:
    """Put together what the ranks give, ``[..., share]``, to ``[..., size]``: the outputs are divided."""

    ranks: Ranks
    size: int

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """A forward hook."""
        own = module.get_buffer(OWN)[: self.ranks.degree, None]
        # A sum with zeros, and not a gathering, for which compiled programs have no call. It is exact.
        placed = torch.where(own, output[..., None, :], 0)
        # Flattened behind the sum: what a program gives to Python must not be what it gave to gloo.
        return all_reduce(placed, self.ranks.group).flatten(-2)[..., : self.size]


@attrs.frozen
class TakeShare:
    """Keep a rank's part of what a layer is given: its inputs are divided, and nothing before did so."""

    ranks: Ranks

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A forward pre-hook."""
        states, *others = inputs
        own = module.get_buffer(OWN)[: self.ranks.degree, None]
        parts = states.view(*states.shape[:-1], self.ranks.degree, -1)
        return torch.where(own, parts, 0).sum(-2), *others


class DividedLookup:
    """
    Look up the tokens whose rows this rank holds, and sum over the ranks.

    Mixed into the class of an embedding, some of which scale what they have found.
    """

    ranks: Ranks
    weight: Tensor
    own_rank: Tensor
    """:data:`OWN`."""

    def forward(self, ids: Tensor) -> Tensor:
        """``[..., hidden]`` of *ids* ``[...]``."""
        rows, degree = self.weight.shape[0], self.ranks.degree
        # The number of the first row, and no division of the ids, which Neuron has in float64 alone.
        first = torch.where(self.own_rank[:degree], torch.arange(degree, device=ids.device) * rows, 0)
        local = ids - first.sum()
        own = (local >= 0) & (local < rows)
        found: Tensor = super().forward(torch.where(own, local, 0))  # type: ignore[misc]  # the embedding's
        return all_reduce(torch.where(own[..., None], found, 0), self.ranks.group)


def divide_lookup(module: nn.Embedding, ranks: Ranks) -> None:
    """Make *module*, whose weight is a rank's part, look up the rest on the other ranks."""
    stock = type(module)
    module.__class__ = type(f"Divided{stock.__name__}", (DividedLookup, stock), {"ranks": ranks})
    module.padding_idx = None
