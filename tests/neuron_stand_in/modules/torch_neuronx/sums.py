"""
Sums among cores.

What is compiled has an all-reduce for each. XLA's CPU client here is one device, so what is run is the
same module with every sum cut out of it: a partial sum goes out, and the total comes in.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_cuts: list[list[tuple[Tensor, Tensor]]] = []


def sum_in_place(partial: Tensor, groups: list[list[int]]) -> None:
    """Make *partial* the sum of what the cores of a group have."""
    import torch_xla.core.xla_model as xm

    if not _cuts:
        # Tensors in a list are written in place; layouts that are not pinned may differ among programs.
        xm.all_reduce(xm.REDUCE_SUM, [partial], groups=groups, pin_layout=False)
        return
    total = torch.zeros(partial.shape, dtype=partial.dtype).to(partial.device)
    _cuts[-1].append((partial.clone(), total))
    partial.copy_(total)


@contextmanager
def cut_out() -> Iterator[list[tuple[Tensor, Tensor]]]:
    """While it lasts, sums are cut: what they were of, and what takes their place, in order."""
    _cuts.append([])
    try:
        yield _cuts[-1]
    finally:
        _cuts.pop()
