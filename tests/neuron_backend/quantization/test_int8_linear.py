"""Int8 linear layers against their dequantized weights in float64."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from decodekit.neuron_backend.quantization.int8_linear import MOST_INPUTS, Int8Linear, plain_int8_matmul
from decodekit.neuron_backend.quantization.quantized_matmul import (
    arrange_for_kernels,
    cpu_matmul,
    int8_matmul,
)
from decodekit.neuron_backend.targets.cpu.kernel_library import NoLibrary

from .rows_of_many_sizes import ROUNDING, shapes, weight_of


@given(**shapes(70))
def test_each_weight_is_within_half_a_step(out_features, in_features, size, dtype):
    """Rounding to the nearest of 255 levels; rounding of the scale may clip the largest slightly."""
    weight = weight_of(out_features, in_features, size, dtype)
    layer = Int8Linear.of(weight, None)

    error = (layer.dequantized(torch.float64) - weight.double()).abs()
    rounding = torch.finfo(dtype).eps * layer.scale.double().clamp(min=torch.finfo(dtype).tiny)
    assert (error <= (layer.scale.double() / 2 + 127 * rounding)[:, None]).all()
    assert -127 <= layer.quantized.min() <= layer.quantized.max() <= 127
    assert (layer.quantized.abs().amax(dim=1) >= 126)[layer.scale > torch.finfo(dtype).tiny].all()


@given(**shapes(70), rows=st.integers(1, 20), bias=st.booleans())
def test_products_are_those_of_the_weights(out_features, in_features, size, dtype, rows, bias):
    """By the portable and the CPU products, for any number of rows."""
    extra = nn.Parameter(weight_of(1, out_features, size, dtype, seed=1)[0]) if bias else None
    layer = Int8Linear.of(weight_of(out_features, in_features, size, dtype), extra)
    x = weight_of(rows, in_features, 1.0, dtype, seed=2).reshape(1, rows, in_features)
    with torch.no_grad():
        expected = x.double() @ layer.dequantized(torch.float64).T + (extra.double() if bias else 0)
        terms = x.double().abs() @ layer.dequantized(torch.float64).abs().T
        found = [plain_int8_matmul(layer, x), int8_matmul(layer, x)]

    # float16 has no larger numbers.
    fits = expected.abs() < 0.99 * torch.finfo(dtype).max
    for product in found:
        assert (dtype, expected.shape) == (product.dtype, product.shape)
        bound = ROUNDING[dtype] * (terms + (extra.double().abs() if bias else 0)) + torch.finfo(dtype).tiny
        assert (((product.double() - expected).abs() <= bound) | ~fits).all()


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
def test_rows_of_zeros_stay_zeros(dtype):
    """No scale is zero, so nothing is divided by it; the smallest weights are not lost to infinity."""
    weight = torch.zeros(3, 8, dtype=dtype)
    weight[1] = torch.finfo(dtype).tiny
    layer = Int8Linear.of(weight, None)

    assert (layer.scale > 0).all()
    torch.testing.assert_close(layer.dequantized(torch.float64), weight.double(), rtol=0.01, atol=0)
    assert torch.equal(torch.zeros(1, dtype=dtype), layer(torch.ones(1, 8, dtype=dtype))[:, 0])


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_weights_that_are_not_finite_are_refused(bad):
    """They would invalidate the whole row."""
    weight = torch.ones(2, 4)
    weight[1, 2] = bad

    with pytest.raises(ValueError, match="a weight must be finite to be quantised"):
        Int8Linear.of(weight, None)


def test_float16_does_not_overflow():
    """Sums of products with unscaled integers overflow float16 long before the result does."""
    weight = torch.ones(4, 512, dtype=torch.float16)
    layer, x = Int8Linear.of(weight, None), torch.full((1, 40, 512), 2.0, dtype=torch.float16)

    for product in (plain_int8_matmul, int8_matmul):
        torch.testing.assert_close(product(layer, x), torch.full((1, 40, 4), 1024.0).half())


def test_the_weight_is_not_written():
    """The user's weight is not modified."""
    weight = weight_of(5, 7, 1.0, torch.float32)
    before = weight.clone()
    Int8Linear.of(weight, None)

    assert torch.equal(before, weight)


@pytest.mark.parametrize(
    ("inputs", "dtype", "expected"),
    [(5, torch.bfloat16, True), (5, torch.float64, False), (MOST_INPUTS + 1, torch.float32, False)],
)
def test_weights_lie_in_blocks_where_kernels_multiply_them(inputs, dtype, expected):
    """Products and dequantized weights stay the same, and rows come back."""
    layer, x = Int8Linear.of(weight_of(18, inputs, 1.0, dtype), None), weight_of(3, inputs, 1.0, dtype)
    rows, before = layer.quantized, (layer(x), layer.dequantized(dtype))

    arrange_for_kernels(layer)

    assert expected == layer.in_blocks
    assert ((18, inputs), True) == ((layer.out_features, layer.in_features), torch.equal(rows, layer.rows()))
    assert all(map(torch.equal, before, (layer(x), layer.dequantized(dtype))))
    assert torch.equal(before[0], plain_int8_matmul(layer, x))
    layer.arrange(in_blocks=False)
    assert torch.equal(rows, layer.quantized)


class EveryInput(NoLibrary):
    """Kernels that take every input, and only compiled programs can call."""

    def takes(self, dtype):
        return True


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
def test_sums_that_could_overflow_32_bits_are_of_floats(dtype):
    """Own kernels sum integers in int32: of so many inputs, the largest product is negative there."""
    size = MOST_INPUTS + 100
    layer = Int8Linear(
        torch.full((2, size), 127, dtype=torch.int8), torch.full((2,), 2**-10, dtype=dtype), None
    )
    with cpu_matmul(layer, EveryInput()):
        found = layer(torch.ones(1, size, dtype=dtype))

    torch.testing.assert_close(
        found.double(), torch.full((1, 2), size * 127 / 2**10).double(), rtol=0.02, atol=0
    )
