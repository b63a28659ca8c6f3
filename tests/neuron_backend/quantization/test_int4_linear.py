"""Int4 linear layers against their dequantized weights in float64."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from decodekit.neuron_backend.quantization.int4_linear import GROUP, Int4Linear, pack_int4, plain_int4_matmul
from decodekit.neuron_backend.quantization.quantized_matmul import int4_matmul

ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 3e-3, torch.float64: 1e-12}


def weight_of(out_features, in_features, size, dtype, seed=0):
    """Random weights, not centred: the range of some groups excludes zero."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out_features, in_features, generator=generator, dtype=torch.float64)
    return ((weight + torch.arange(out_features)[:, None] % 3 - 1) * size).to(dtype)


shapes = {
    "out_features": st.integers(1, 130),
    "groups": st.integers(1, 3),
    "size": st.sampled_from([1e-3, 1.0, 30.0]),
    "dtype": st.sampled_from(list(ROUNDING)),
}


@given(**shapes)
def test_each_weight_is_within_half_a_step(out_features, groups, size, dtype):
    """16 levels from the smallest weight of a group to its largest; both are rounded slightly."""
    weight = weight_of(out_features, groups * GROUP, size, dtype)
    layer = Int4Linear.of(weight, None)

    grouped = weight.double().unflatten(1, (-1, GROUP))
    step = (grouped.amax(dim=2) - grouped.amin(dim=2)) / 15
    error = (layer.dequantized(torch.float64) - weight.double()).unflatten(1, (-1, GROUP)).abs().amax(dim=2)
    slack = 8 * torch.finfo(dtype).eps * (step + grouped.abs().amax(dim=2))
    assert (error <= step / 2 + slack).all()


@given(**shapes, rows=st.integers(1, 20), bias=st.booleans(), aten=st.booleans())
def test_products_are_those_of_the_weights(out_features, groups, size, dtype, rows, bias, aten):
    """By the portable and the CPU products, with and without ATen's kernel."""
    extra = nn.Parameter(weight_of(1, out_features, size, dtype, seed=1)[0]) if bias else None
    layer = Int4Linear.of(weight_of(out_features, groups * GROUP, size, dtype), extra)
    x = weight_of(rows, groups * GROUP, 1.0, dtype, seed=2).reshape(1, rows, groups * GROUP)
    aten = aten and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    with torch.no_grad():
        expected = x.double() @ layer.dequantized(torch.float64).T + (extra.double() if bias else 0)
        # Scale and zero are multiplied separately, and cancel.
        parts = layer.levels.double().abs()[:, :out_features] @ torch.tensor([8.0, 1.0], dtype=torch.float64)
        terms = x.double().abs() @ parts.repeat_interleave(GROUP, dim=0)
        found = [plain_int4_matmul(layer, x), int4_matmul(layer, x, aten=aten)]

    for product in found:
        assert (dtype, expected.shape) == (product.dtype, product.shape)
        bound = ROUNDING[dtype] * (terms + (extra.double().abs() if bias else 0)) + torch.finfo(dtype).tiny
        assert ((product.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_groups_of_one_value_are_exact(value, dtype):
    """Their range is 0, which is not divided by."""
    weight = torch.full((3, GROUP), value, dtype=dtype)
    layer = Int4Linear.of(weight, None)

    torch.testing.assert_close(layer.dequantized(torch.float64), weight.double(), rtol=1e-6, atol=1e-3)
    assert layer.levels.isfinite().all()


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_weights_that_are_not_finite_are_refused(bad):
    """They would invalidate the whole group."""
    weight = torch.ones(2, GROUP)
    weight[1, 2] = bad

    with pytest.raises(ValueError, match="a weight must be finite to be quantised"):
        Int4Linear.of(weight, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_whose_difference_overflows_are_refused(dtype):
    """Scale and zero would be no numbers."""
    weight = torch.ones(2, GROUP, dtype=dtype)
    weight[1, 2:4] = torch.tensor([2e38, -2e38])

    with pytest.raises(ValueError, match=r"32 weights in a row must differ by at most .*: got"):
        Int4Linear.of(weight, None)


@pytest.mark.parametrize("inputs", [0, 1, GROUP - 1, GROUP + 1])
def test_inputs_that_make_no_whole_groups_are_refused(inputs):
    """Inputs are not padded."""
    with pytest.raises(ValueError, match=f"the inputs must be a multiple of 32: got {inputs}"):
        Int4Linear.of(torch.ones(2, inputs), None)


def test_two_outputs_share_a_byte():
    """Outputs o and o + 32 of a block share a byte; inputs are contiguous."""
    whole = (torch.arange(128)[:, None] + 3 * torch.arange(GROUP)).remainder(16).to(torch.uint8)
    packed = pack_int4(whole)

    assert (2, GROUP, 32) == packed.shape
    assert int(whole[64 + 5, 7]) + 16 * int(whole[64 + 37, 7]) == int(packed[1, 7, 5])
