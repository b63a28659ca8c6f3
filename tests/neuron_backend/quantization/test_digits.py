"""Products of integers against the same in double precision."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decodekit.neuron_backend.quantization import digits

# What digits leave out of an input, as a share of the largest of its row, and what single precision rounds.
LEFT_OUT = {dtype: 0.5 / 127 * digits.BASE ** (1 - count) for dtype, count in digits.DIGITS.items()}
SINGLE = 2.0**-21

sizes = {
    "inputs": st.integers(1, 300),
    "outputs": st.integers(1, 70),
    "rows": st.integers(1, 40),
    "dtype": st.sampled_from(list(digits.DIGITS)),
    "seed": st.integers(0, 2**20),
}


def drawn(rows, inputs, outputs, dtype, seed):
    """Inputs of very different sizes, integers over their whole range, and scales."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator) * torch.logspace(-3, 3, rows)[:, None]
    quantized = torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
    return x.to(dtype), quantized, torch.rand(outputs, generator=generator).to(dtype)


@given(**sizes)
def test_products_are_those_of_the_numbers(rows, inputs, outputs, dtype, seed):
    """Up to what the last digit leaves out of each input, and what single precision rounds."""
    x, quantized, scale = drawn(rows, inputs, outputs, dtype, seed)
    found = digits.product(x, digits.pack(quantized), scale)

    weight = quantized.double() * scale.double()[:, None]
    largest = x.double().abs().amax(dim=1, keepdim=True)
    bound = LEFT_OUT[dtype] * largest * weight.abs().sum(dim=1) + SINGLE * (x.double().abs() @ weight.abs().T)
    assert (torch.float32, (rows, outputs)) == (found.dtype, found.shape)
    assert ((found.double() - x.double() @ weight.T).abs() <= bound).all()


@given(**sizes)
def test_a_row_is_the_same_beside_others(rows, inputs, outputs, dtype, seed):
    """To the last bit, whatever their number: integers add up in any order."""
    x, quantized, scale = drawn(rows, inputs, outputs, dtype, seed)
    packed = digits.pack(quantized)

    together = digits.product(x, packed, scale)
    assert torch.equal(together, torch.cat([digits.product(row[None], packed, scale) for row in x]))


@pytest.mark.parametrize("dtype", list(digits.DIGITS), ids=str)
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_so(bad, dtype):
    """A row with such an input has no result; its neighbour has its own."""
    x = torch.ones(2, 8, dtype=dtype)
    x[0, 3] = bad
    packed = digits.pack(torch.full((4, 8), 3, dtype=torch.int8))
    found = digits.product(x, packed, torch.ones(4, dtype=dtype))

    assert not found[0].isfinite().any()
    torch.testing.assert_close(found[1], torch.full((4,), 24.0))


@pytest.mark.parametrize("dtype", list(digits.DIGITS), ids=str)
def test_rows_of_zeros_give_zeros(dtype):
    """Nothing is divided by their largest number."""
    packed = digits.pack(torch.full((4, 8), 3, dtype=torch.int8))

    assert torch.equal(
        torch.zeros(2, 4), digits.product(torch.zeros(2, 8, dtype=dtype), packed, torch.ones(4, dtype=dtype))
    )


def test_sums_are_exact_up_to_32_bits():
    """Whatever a processor adds to inputs so that they are not negative."""
    size = 133_143
    rows = torch.full((2, size), 127.0)
    rows[1] = -127
    one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    packed = digits.pack(torch.full((4, size), 127, dtype=torch.int8))
    found = digits.sums(digits.stored(rows), packed, one, zero)

    assert torch.equal(torch.tensor([[1.0], [-1.0]]) * float(127 * 127 * size), found[:, :1])
    assert torch.equal(found[:, :1].expand(2, 4), found)


@pytest.mark.skipif(not digits.takes(torch.float32, 64), reason="multiplies in integers nowhere")
@pytest.mark.parametrize("rows", [1, 6, 48])
def test_onednn_has_a_kernel_for_them(rows, capfd):
    """Its reference takes a thousand times as long."""
    inputs = digits.stored(torch.ones(rows, 64))
    one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        digits.sums(inputs, digits.pack(torch.ones(32, 64, dtype=torch.int8)), one, zero)
    (line,) = (line for line in capfd.readouterr().out.splitlines() if ",exec,cpu,matmul," in line)

    assert ",ref" not in line


def test_sums_that_could_leave_32_bits_are_not_taken():
    """Nor numbers with more bits than digits have."""
    assert digits.takes(torch.float32, 133_143) == digits.takes(torch.bfloat16, 1)
    assert not digits.takes(torch.float32, 133_145)
    assert not digits.takes(torch.float64, 8)
