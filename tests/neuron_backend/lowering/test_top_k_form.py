import pytest
import torch
from torch import Tensor, nn

from decodekit.neuron_backend import lint_graph, lower


class TopK(nn.Module):
    """A top-k of given options."""

    def __init__(self, dim: int, largest: bool, ordered: bool):
        super().__init__()
        self.dim, self.largest, self.ordered = dim, largest, ordered

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = x.topk(2, self.dim, self.largest, self.ordered)
        return values, 2 * indices


def scores(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (2, 1, 3, 7)])
def test_of_any_dimensions_is_one_of_two(shape: tuple[int, ...], ordered: bool) -> None:
    """Sorted, which is a valid order of an unsorted top-k."""
    x = scores(*shape)
    lowered = lower(TopK(-1, True, ordered), (x,))
    values, indices = lowered(x)

    assert [] == lint_graph(lowered)
    assert torch.equal(x.topk(2).values, values)
    assert torch.equal(2 * x.topk(2).indices, indices)


@pytest.mark.parametrize(("dim", "largest"), [(0, True), (1, False)])
def test_of_another_kind_is_left_to_the_lint(dim: int, largest: bool) -> None:
    """The smallest, or along another dimension."""
    x = scores(3, 7)
    lowered = lower(TopK(dim, largest, True), (x,))

    assert ["top-k-form"] == [finding.rule for finding in lint_graph(lowered)]
    assert torch.equal(x.topk(2, dim=dim, largest=largest).values, lowered(x)[0])
