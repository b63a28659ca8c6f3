"""Costs of programs, counted in graphs, and the budget."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from decodekit.neuron_backend.kv_cache.writes import write_by_scatter, write_in_place
from decodekit.neuron_backend.lint.budget import Budget, Cost, lint_budget
from decodekit.neuron_backend.lowering.export import lower


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def graph(function: Callable[..., Any]) -> GraphModule:
    """Lowered, of a buffer ``[2, 3, 7, 4]``, five of its slots, and their states."""
    slots = torch.zeros(2, 5, dtype=torch.int64)
    return lower(Function(function), (torch.zeros(2, 3, 7, 4), slots, torch.ones(2, 3, 5, 4)))


def scattered(buffer: Tensor, slots: Tensor, states: Tensor) -> Tensor:
    return write_by_scatter(buffer, torch.arange(2)[:, None], slots, states).narrow(2, 0, 6).transpose(1, 2)


def transposed(buffer: Tensor, slots: Tensor, states: Tensor) -> Tensor:
    return write_in_place(buffer, torch.arange(2)[:, None], slots, states).sum()


class TestCost:
    def test_of_one_scatter(self) -> None:
        """One index for each number written; a transpose of what is attended to is none of the buffer."""
        assert Cost(scatter_indices=2 * 3 * 5 * 4, buffer_copies=0, float64=0) == Cost.of(graph(scattered))

    def test_of_a_write_through_a_transpose(self) -> None:
        """There, and back."""
        assert 2 == Cost.of(graph(transposed)).buffer_copies

    @pytest.mark.parametrize(
        "copied", [lambda b: b.clone(), lambda b: b.transpose(2, 3), lambda b: b.permute(0, 2, 1, 3)]
    )
    def test_of_a_copy_after_the_write(self, copied: Callable[[Tensor], Tensor]) -> None:
        """Of the whole buffer."""

        def function(buffer: Tensor, slots: Tensor, states: Tensor) -> Tensor:
            written = write_by_scatter(buffer, torch.arange(2)[:, None], slots, states)
            return copied(written) + 1

        assert 1 == Cost.of(graph(function)).buffer_copies

    def test_of_float64(self) -> None:
        """The cast, and what is computed."""
        double = graph(lambda buffer, slots, states: states.double().exp().sum().float())

        assert 3 == Cost.of(double).float64


class TestLintBudget:
    def test_lets_pass_what_fits(self) -> None:
        """Up to the largest count."""
        assert [] == lint_budget({"a": graph(scattered)}, Budget(scatter_indices=120, programs=1))

    def test_names_the_program_and_the_count(self) -> None:
        """One finding each."""
        (finding,) = lint_budget({"a": graph(scattered)}, Budget(scatter_indices=119))

        assert ("scatter_indices", "a") == (finding.rule, finding.node)
        assert finding.message.startswith(
            "scatter_indices must be <= 119: got 120; take a smaller widest width"
        )

    def test_finds_copies_of_the_cache(self) -> None:
        """The budget for them is none."""
        assert ["buffer_copies"] == [finding.rule for finding in lint_budget({"a": graph(transposed)})]

    def test_counts_the_programs(self) -> None:
        """Of the decoder as a whole."""
        one = graph(scattered)
        (finding,) = lint_budget({"a": one, "b": one}, Budget(programs=1))

        assert "programs must be <= 1: got 2; take fewer widths or spans" == finding.message
