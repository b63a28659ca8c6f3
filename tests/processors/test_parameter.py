"""Converters and validators of processor parameters."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from decodekit.processors import Temperature, TopK


class TestReals:
    @pytest.mark.parametrize("given", [2, 2.0, np.float32(2), np.int64(2), Fraction(2)])
    def test_a_number_of_any_kind_is_a_float(self, given: Any) -> None:
        """Python's numbers and numpy's alike."""
        temperature = Temperature(given).temperature

        assert isinstance(temperature, float)
        assert 2.0 == temperature

    @pytest.mark.parametrize(
        "given",
        [
            [1, 2.5],
            (1.0, 2.5),
            np.array([1.0, 2.5]),
            torch.tensor([1.0, 2.5]),
            torch.tensor([1.0, 2.5]).half(),
        ],
    )
    def test_several_are_a_float64_tensor(self, given: Any) -> None:
        """Which is what Python's numbers are."""
        temperature = Temperature(given).temperature

        assert isinstance(temperature, torch.Tensor)
        assert torch.equal(torch.tensor([1.0, 2.5], dtype=torch.float64), temperature)

    @pytest.mark.parametrize("given", [True, "1", None, 1j, [True], ["1"], [[1.0]], np.True_, object()])
    def test_anything_else_is_refused(self, given: Any) -> None:
        """The message names the parameter, the rule and the value."""
        with pytest.raises(TypeError, match="'temperature' must be a number, or numbers one per row: got "):
            Temperature(given)

    @pytest.mark.parametrize("given", [torch.tensor([True]), torch.tensor([1j])])
    def test_tensors_of_another_kind_are_refused(self, given: torch.Tensor) -> None:
        """Truth values and complex numbers are no temperatures."""
        with pytest.raises(
            TypeError, match="'temperature' must be a tensor of real numbers: got one of torch"
        ):
            Temperature(given)

    @pytest.mark.parametrize("given", [torch.tensor(1.0), torch.ones(2, 1), torch.ones(0), []])
    def test_tensors_of_another_shape_are_refused(self, given: Any) -> None:
        """One value per row, and at least one row."""
        with pytest.raises(ValueError, match="'temperature' must be 1-D, one value per row: got shape"):
            Temperature(given)

    def test_a_tensor_is_copied(self) -> None:
        """The caller's tensor may change later."""
        given = torch.tensor([1.0, 2.0], dtype=torch.float64)
        temperature = Temperature(given)

        given[0] = 0.0

        assert "1., 2." in repr(temperature)


class TestIntegers:
    @pytest.mark.parametrize(
        "given", [[3, 0], range(3, -1, -3), np.array([3, 0]), torch.tensor([3, 0]).int()]
    )
    def test_several_are_an_int64_tensor(self, given: Any) -> None:
        """Whatever they came in."""
        assert torch.equal(torch.tensor([3, 0]), torch.as_tensor(TopK(given).k))

    @pytest.mark.parametrize("given", [torch.tensor([3.0]), torch.tensor([True])])
    def test_tensors_of_another_kind_are_refused(self, given: torch.Tensor) -> None:
        """3.0 is no count."""
        with pytest.raises(TypeError, match="'k' must be a tensor of integers: got one of torch"):
            TopK(given)
