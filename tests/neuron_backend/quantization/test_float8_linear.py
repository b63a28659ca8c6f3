"""Float8 linear layers against their dequantized weights in float64."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from decodekit.neuron_backend.quantization.float8_linear import FLOAT8, Float8Linear
from decodekit.neuron_backend.quantization.int4_linear import Int4Linear
from decodekit.neuron_backend.quantization.int8_linear import Int8Linear, plain_int8_matmul
from decodekit.neuron_backend.quantization.quantized_matmul import cuda_matmul, int8_matmul

from .rows_of_many_sizes import ROUNDING, shapes, weight_of


@given(**shapes(40))
def test_each_weight_is_within_a_sixteenth_of_itself(out_features, in_features, size, dtype):
    """
    Three bits of mantissa; for the smallest weights, within half a step of 2^-9 times the scale.

    Rounding of the scale, coarse for subnormal scales, may clip the largest weight slightly.
    """
    weight = weight_of(out_features, in_features, size, dtype)
    layer = Float8Linear.of(weight, None)
    error = (layer.dequantized(torch.float64) - weight.double()).abs()
    scale = layer.scale.double()[:, None]
    rounding = 448 * torch.finfo(dtype).eps * scale.clamp(min=torch.finfo(dtype).tiny)

    assert (error <= weight.double().abs() / 16 + 2.0**-10 * scale + rounding).all()
    assert FLOAT8 == layer.quantized.dtype
    assert (layer.quantized.double().abs().amax(dim=1) >= 416)[layer.scale > torch.finfo(dtype).tiny].all()


@given(**shapes(40), rows=st.integers(1, 20), bias=st.booleans())
def test_products_are_those_of_the_weights(out_features, in_features, size, dtype, rows, bias):
    """By the portable, the CPU and the GPU products; activations keep their dtype."""
    extra = nn.Parameter(weight_of(1, out_features, size, dtype, seed=1)[0]) if bias else None
    layer = Float8Linear.of(weight_of(out_features, in_features, size, dtype), extra)
    x = weight_of(rows, in_features, 1.0, dtype, seed=2).reshape(1, rows, in_features)
    with torch.no_grad():
        expected = x.double() @ layer.dequantized(torch.float64).T + (extra.double() if bias else 0)
        terms = x.double().abs() @ layer.dequantized(torch.float64).abs().T
        found = [plain_int8_matmul(layer, x), int8_matmul(layer, x), int8_matmul(layer, x, aten=False)]

    for product in found:
        assert (dtype, expected.shape) == (product.dtype, product.shape)
        bound = ROUNDING[dtype] * (terms + (extra.double().abs() if bias else 0)) + torch.finfo(dtype).tiny
        assert ((product.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
def test_rows_of_zeros_stay_zeros(dtype):
    """No scale is zero, so nothing is divided by it."""
    layer = Float8Linear.of(torch.zeros(3, 8, dtype=dtype), None)

    assert (layer.scale > 0).all()
    assert torch.equal(torch.zeros(1, 3, dtype=dtype), layer(torch.ones(1, 8, dtype=dtype)))


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_weights_that_are_not_finite_are_refused(bad):
    """They would invalidate the whole row."""
    weight = torch.ones(2, 4)
    weight[1, 2] = bad

    with pytest.raises(ValueError, match="a weight must be finite to be quantised"):
        Float8Linear.of(weight, None)


def test_the_largest_weight_of_a_row_is_never_lost():
    """With a scale rounded down it would exceed the largest float8 and become NaN."""
    weight = torch.linspace(0.9, 1.1, 4096).to(torch.bfloat16)[:, None]

    assert Float8Linear.of(weight, None).quantized.float().isfinite().all()


def test_products_for_a_gpu_hold_while_a_step_is_traced():
    """Portable products before and after; ATen's CPU kernels are not used."""
    weight = weight_of(32, 32, 1.0, torch.bfloat16)
    layers = nn.ModuleList([kind.of(weight, None) for kind in (Int8Linear, Int4Linear, Float8Linear)])
    before = [layer.matmul for layer in layers]
    x = torch.ones(1, 32, dtype=torch.bfloat16)
    with cuda_matmul(layers):
        for layer in layers:
            graph = torch.fx.experimental.proxy_tensor.make_fx(layer)(x)
            names = {str(node.target) for node in graph.graph.nodes}
            assert not [name for name in names if "packed" in name or "pack_mm" in name]
            assert "aten.sum.dim_IntList" in names

    assert before == [layer.matmul for layer in layers]
