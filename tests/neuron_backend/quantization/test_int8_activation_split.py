"""Integer matmul of split activations against float64."""

import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.neuron_backend.quantization.int8_activation_split import (
    BASE,
    NUM_PLANES,
    can_split,
    exact_matmul,
    pack_weights,
    split_matmul,
    stored,
)

# Error of the split, relative to the largest of a row, and rounding in float32.
LEFT_OUT = {dtype: 0.5 / 127 * BASE ** (1 - count) for dtype, count in NUM_PLANES.items()}
SINGLE = 2.0**-21

sizes = {
    "inputs": st.integers(1, 300),
    "outputs": st.integers(1, 70),
    "rows": st.integers(1, 40),
    "dtype": st.sampled_from(list(NUM_PLANES)),
    "seed": st.integers(0, 2**20),
}


def drawn(rows, inputs, outputs, dtype, seed):
    """Inputs of widely different magnitude, integers over their whole range, and scales."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator) * torch.logspace(-3, 3, rows)[:, None]
    quantized = torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
    return x.to(dtype), quantized, torch.rand(outputs, generator=generator).to(dtype)


@given(**sizes)
def test_products_are_those_of_the_numbers(rows, inputs, outputs, dtype, seed):
    """Up to the error of the split and rounding in float32."""
    x, quantized, scale = drawn(rows, inputs, outputs, dtype, seed)
    found = split_matmul(x, pack_weights(quantized), scale)

    weight = quantized.double() * scale.double()[:, None]
    largest = x.double().abs().amax(dim=1, keepdim=True)
    bound = LEFT_OUT[dtype] * largest * weight.abs().sum(dim=1) + SINGLE * (x.double().abs() @ weight.abs().T)
    assert (torch.float32, (rows, outputs)) == (found.dtype, found.shape)
    assert ((found.double() - x.double() @ weight.T).abs() <= bound).all()


@given(**sizes)
def test_a_row_is_the_same_beside_others(rows, inputs, outputs, dtype, seed):
    """Bit for bit, for any number of rows, since integer sums are exact."""
    x, quantized, scale = drawn(rows, inputs, outputs, dtype, seed)
    packed = pack_weights(quantized)

    together = split_matmul(x, packed, scale)
    assert torch.equal(together, torch.cat([split_matmul(row[None], packed, scale) for row in x]))


@pytest.mark.parametrize("dtype", list(NUM_PLANES), ids=str)
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_so(bad, dtype):
    """A row with such an input is not finite; other rows are not affected."""
    x = torch.ones(2, 8, dtype=dtype)
    x[0, 3] = bad
    packed = pack_weights(torch.full((4, 8), 3, dtype=torch.int8))
    found = split_matmul(x, packed, torch.ones(4, dtype=dtype))

    assert not found[0].isfinite().any()
    torch.testing.assert_close(found[1], torch.full((4,), 24.0))


@pytest.mark.parametrize("dtype", list(NUM_PLANES), ids=str)
def test_rows_of_zeros_give_zeros(dtype):
    """Their largest magnitude, 0, is not divided by."""
    packed = pack_weights(torch.full((4, 8), 3, dtype=torch.int8))

    assert torch.equal(
        torch.zeros(2, 4), split_matmul(torch.zeros(2, 8, dtype=dtype), packed, torch.ones(4, dtype=dtype))
    )


def test_sums_are_exact_up_to_32_bits():
    """Whatever offset a CPU's unsigned format adds."""
    size = 133_143
    rows = torch.full((2, size), 127.0)
    rows[1] = -127
    one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    packed = pack_weights(torch.full((4, size), 127, dtype=torch.int8))
    found = exact_matmul(stored(rows), packed, one, zero)

    assert torch.equal(torch.tensor([[1.0], [-1.0]]) * float(127 * 127 * size), found[:, :1])
    assert torch.equal(found[:, :1].expand(2, 4), found)


@pytest.mark.skipif(not can_split(torch.float32, 64), reason="this CPU has no exact int8 instructions")
@pytest.mark.parametrize("rows", [1, 6, 48])
def test_onednn_does_not_use_its_reference_kernel(rows, capfd):
    """It takes a thousand times as long."""
    inputs = stored(torch.ones(rows, 64))
    one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        exact_matmul(inputs, pack_weights(torch.ones(32, 64, dtype=torch.int8)), one, zero)
    (line,) = (line for line in capfd.readouterr().out.splitlines() if ",exec,cpu,matmul," in line)

    assert ",ref" not in line


def test_sums_that_could_overflow_int32_are_not_supported():
    """Nor dtypes with more bits than the planes hold."""
    assert can_split(torch.float32, 133_143) == can_split(torch.bfloat16, 1)
    assert not can_split(torch.float32, 133_145)
    assert not can_split(torch.float64, 8)
