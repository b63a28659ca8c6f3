from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from decodekit.neuron_backend import lower
from decodekit.neuron_backend.lowering.complex_pairs import pair_complex_numbers


class Of(nn.Module):
    """A function of two real tensors as a module."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, angle: Tensor) -> Tensor:
        return self.function(x, angle)


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """As Llama-4 does it: ``[rows, 4, 6]`` by ``[rows, 3]``."""
    turn = torch.polar(torch.ones_like(angle), angle) * 1.5
    numbers = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(numbers * turn[:, None]).flatten(2)


def moved(x: Tensor, angle: Tensor) -> Tensor:
    """Through every layout operation, and products with real tensors on either side."""
    numbers = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)).transpose(0, 1)
    numbers = (angle * numbers * angle).permute(2, 0, 1)[1:].unsqueeze(0).expand(2, -1, -1, -1)
    return torch.view_as_real(numbers.clone().reshape(2, -1)[0].to(torch.complex64))


def added(x: Tensor, angle: Tensor) -> Tensor:
    """A sum of complex numbers, which is not supported."""
    numbers = torch.view_as_complex(x)
    return torch.view_as_real(numbers + numbers * angle[0, 0])


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 4, 6, generator=generator), torch.randn(5, 3, generator=generator)


def is_complex(module: GraphModule) -> bool:
    values = (node.meta.get("val") for node in module.graph.nodes)
    return any(isinstance(value, Tensor) and value.is_complex() for value in values)


@pytest.mark.parametrize("function", [rotated, moved])
def test_pairs_say_the_same(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Nothing complex is left, before and after decomposition."""
    module = Of(function)
    exported = torch.export.export(module, inputs(), strict=False)

    assert is_complex(exported.graph_module)

    pair_complex_numbers(exported.graph_module)
    lowered = lower(module, inputs())

    assert not is_complex(exported.graph_module)
    assert not is_complex(lowered)
    for found in (exported.module(), lowered):
        torch.testing.assert_close(found(*inputs()), function(*inputs()))


def test_what_is_not_known_stays_whole() -> None:
    """The graph is unchanged, and the lint reports it."""
    exported = torch.export.export(Of(added), (torch.randn(5, 2), inputs()[1]), strict=False)
    before = str(exported.graph)
    pair_complex_numbers(exported.graph_module)

    assert before == str(exported.graph_module.graph)
