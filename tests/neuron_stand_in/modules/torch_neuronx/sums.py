"""
Sums among cores.

The compiled graph has an all-reduce for each. XLA's CPU client is one device, so the graph that is run is
the same without the sums: each partial sum is an output, and each total an input.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_cuts: list[list[tuple[Tensor, Tensor]]] = []


def sum_in_place(partial: Tensor, groups: list[list[int]]) -> None:
    """Replace *partial* by its sum over the cores of each group."""
    import torch_xla.core.xla_model as xm

    if not _cuts:
        # In a list, the tensor is written in place; without pinned layouts, programs may differ in them.
        xm.all_reduce(xm.REDUCE_SUM, [partial], groups=groups, pin_layout=False)
        return
    total = torch.zeros(partial.shape, dtype=partial.dtype).to(partial.device)
    _cuts[-1].append((partial.clone(), total))
    partial.copy_(total)


@contextmanager
def cut_out() -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Cut sums while the body runs; gives pairs of summand and replacement, in order."""
    _cuts.append([])
    try:
        yield _cuts[-1]
    finally:
        _cuts.pop()
