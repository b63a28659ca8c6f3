"""Graphs rewritten to int32."""

import pytest
import torch
from torch import Tensor, nn

from decodekit.neuron_backend.lowering.export import lower
from decodekit.neuron_backend.lowering.narrow_integers import narrow_to_int32

X = torch.tensor([[0.5, 2.0, 1.0], [0.25, 0.125, 4.0]])
I = torch.tensor([[0, 2, 1], [1, 0, 2]])  # noqa: E741 (integers, beside X)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def narrowed(function, *inputs):
    """The graph of a function."""
    graph = lower(Function(function), inputs)
    narrow_to_int32(graph)
    return graph


def wide(graph, *inputs):
    """Operations that return int64 when the graph is run."""
    found = []

    class Watch(torch.fx.Interpreter):
        def run_node(self, node):
            result = super().run_node(node)
            if isinstance(result, Tensor) and result.dtype == torch.int64:
                found.append(node.name)
            return result

    Watch(graph).run(*inputs)
    return found


FUNCTIONS = [
    pytest.param(
        lambda x, i: torch.where(x == x.amax(-1, keepdim=True), torch.arange(3), 2).amin(-1), id="min"
    ),
    pytest.param(lambda x, i: x.gather(-1, i) + x.scatter(-1, i, 1.5), id="gather-scatter"),
    pytest.param(lambda x, i: (i * 3 + 1).sum(-1) - i.amax(-1), id="sum"),
    pytest.param(lambda x, i: (x > 0.3).sum(-1), id="count"),
    pytest.param(lambda x, i: x.topk(2).values + x.topk(2).indices, id="top-k"),
    pytest.param(lambda x, i: x.long() + i.long().clamp(min=1), id="cast"),
    pytest.param(lambda x, i: i + torch.full((2, 3), 7), id="full"),
    pytest.param(lambda x, i: torch.ones_like(i).cumsum(-1) + i, id="cumsum"),
]


@pytest.mark.mostly_slow(every=4)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_give_the_same(function):
    """int32 inputs in place of int64, and int32 outputs."""
    expected = function(X, I)

    found = narrowed(function, X, I)(X, I.int())

    assert (torch.int32 if expected.dtype == torch.int64 else expected.dtype) == found.dtype
    assert expected.tolist() == found.tolist()


@pytest.mark.parametrize("function", [case for case in FUNCTIONS if case.id != "top-k"])
def test_compute_nothing_in_64_bits(function):
    """No operation returns int64; before, one did."""
    graph = lower(Function(function), (X, I))
    before = wide(graph, X, I)
    narrow_to_int32(graph)

    assert before
    assert [] == wide(graph, X, I.int())


def test_indices_that_are_always_int64_are_narrowed_at_once():
    """The indices of a top-k are converted to int32."""
    graph = narrowed(lambda x: x.topk(2).indices + 1, X)

    assert ["getitem_1"] == wide(graph, X)


@pytest.mark.parametrize(
    "function",
    [lambda i: i + torch.tensor([[0, 1, 2**32]]), lambda i: i + 2**32, lambda i: i > 2**32],
    ids=["tensor", "number", "comparison"],
)
def test_what_does_not_fit_is_refused(function):
    """Rather than truncated."""
    with pytest.raises(OverflowError, match="must fit into 32 bits: got 4294967296"):
        narrowed(function, I)


def test_an_open_slice_is_none_that_does_not_fit():
    """Its end is the largest int64."""
    assert [[2, 1], [0, 2]] == narrowed(lambda i: i[:, 1:] + 0, I)(I.int()).tolist()
