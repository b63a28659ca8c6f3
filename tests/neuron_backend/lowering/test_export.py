"""Lowering: whole copies, and torch's own deprecation warnings."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from decodekit.neuron_backend.lowering.export import lower, without_known_warnings


def test_another_warning_is_heard() -> None:
    """Other warnings of the same category are raised, and afterwards the known ones are again."""
    known = "`isinstance(treespec, LeafSpec)` is deprecated"
    with without_known_warnings():
        warnings.warn(known, FutureWarning, stacklevel=1)
        with pytest.warns(FutureWarning, match="another"):
            warnings.warn("another", FutureWarning, stacklevel=1)

    with pytest.warns(FutureWarning, match="LeafSpec"):
        warnings.warn(known, FutureWarning, stacklevel=1)


class Copies(nn.Module):
    """Writes into the whole of a buffer, whose layout a later view needs."""

    def __init__(self, transposed: bool):
        super().__init__()
        self.transposed = transposed

    def forward(self, x: Tensor) -> Tensor:
        buffer = torch.zeros(2, 4, 4)
        buffer.copy_((x * 2).transpose(1, 2) if self.transposed else x * 2)
        return buffer.view(2, 16)


@pytest.mark.parametrize("transposed", [False, True])
def test_whole_copies_are_dropped_where_the_layout_is_the_same(transposed: bool) -> None:
    """The results are those of the module."""
    module, x = Copies(transposed), torch.arange(32.0).view(2, 4, 4)
    graph = lower(module, (x,))
    copies = list(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy.default))

    assert torch.equal(module(x), graph(x))
    assert transposed == bool(copies)
