"""Top-k in pieces."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from decodekit.neuron_backend.targets.cuda.cuda_top_k import split_top_k

INF = torch.inf


class Largest(nn.Module):
    """The *k* largest of each row."""

    def __init__(self, k: int, read: Callable[..., object], options: dict[str, Any]):
        super().__init__()
        self.k, self.read, self.options = k, read, {"dim": -1, **options}

    def forward(self, values: Tensor) -> object:
        """Values ``[rows, size]``."""
        return self.read(values.topk(self.k, **self.options))


def split(
    values: Tensor, k: int, read: Callable[..., object] = lambda found: found.values, **options: Any
) -> GraphModule:
    """The rewritten graph."""
    module = torch.export.export(Largest(k, read, options), (values,), strict=False).module()
    assert isinstance(module, GraphModule)
    split_top_k(module)
    module.recompile()
    return module


def count(module: GraphModule) -> int:
    """Number of calls of top-k."""
    return len(module.graph.find_nodes(op="call_function", target=torch.ops.aten.topk.default))


@pytest.mark.parametrize(("size", "k"), [(2048, 1), (5000, 20), (16_000, 256), (49_152, 50)])
def test_finds_the_same_values(size: int, k: int) -> None:
    """With ties, infinities and rows that are masked but for one."""
    values = torch.randn(3, size).mul(4).round().div(4)
    values[0, 100:200], values[1, 1:], values[2, 7] = -INF, -INF, INF
    module = split(values, k)

    assert 2 == count(module)
    assert torch.equal(values.topk(k).values, module(values))


def test_nan_is_the_largest() -> None:
    """As in PyTorch's."""
    values = torch.randn(2, 4096)
    values[1, 4000] = torch.nan

    assert torch.equal(split(values, 8)(values).isnan(), values.topk(8).values.isnan())


@pytest.mark.parametrize("size", [61, 1024, 2047])
def test_short_rows_are_left_alone(size: int) -> None:
    """One block reads them."""
    assert 1 == count(split(torch.randn(2, size), 20))


@pytest.mark.parametrize("read", [lambda found: found.indices, tuple])
def test_indices_that_are_read_are_left_alone(read: Callable[..., object]) -> None:
    """Of equal values another might be found."""
    assert 1 == count(split(torch.randn(2, 8192), 20, read))


@pytest.mark.parametrize("options", [{"largest": False}, {"sorted": False}, {"dim": 0}])
def test_another_top_k_is_left_alone(options: dict[str, Any]) -> None:
    """The smallest, values in no order, columns."""
    values = torch.randn(4096, 4096)

    assert 1 == count(split(values, 20, **options))


def test_more_dimensions_are_left_alone() -> None:
    """The samplers' have two."""
    assert 1 == count(split(torch.randn(2, 1, 8192), 20))
