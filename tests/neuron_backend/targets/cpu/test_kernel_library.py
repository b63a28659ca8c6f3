"""The skinny GEMM kernels against torch's products, compiled for this CPU and portably."""

import os
from functools import cache

import pytest
import torch
from hypothesis import given, settings, strategies as st

from decodekit.neuron_backend.quantization.int4_linear import GROUP, Int4Linear
from decodekit.neuron_backend.quantization.int8_activation_split import can_split, pack_weights, split_matmul
from decodekit.neuron_backend.quantization.int8_linear import Int8Linear
from decodekit.neuron_backend.targets.cpu import aoti
from decodekit.neuron_backend.targets.cpu.kernel_library import DTYPES, MOST_ROWS_BY_4_BITS, Library

pytestmark = pytest.mark.skipif(not aoti.has_compiler(), reason="needs a C++ compiler")

# One row, several, and more than are held in registers or cache at once, with a remainder.
ROWS = (1, 2, 5, 9, 13, 52)

# Rounding of a float32 sum, and of a result's own dtype.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


KINDS = ("for this processor", "portable", "tiled")


@cache
def library(dtype, kind):
    """Compiled once."""
    return Library.compiled(dtype, ROWS, portable=kind == "portable", tiled=kind == "tiled")


def numbers(rows, columns, dtype, seed):
    """Normal numbers, with rows of very different magnitude."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-1, 1, rows)[:, None]
    return (torch.randn(rows, columns, generator=generator) * sizes).to(dtype)


def check_near(found, x, weight):
    """The error is within the rounding of the terms and of the result."""
    assert (x.dtype, (len(x), len(weight))) == (found.dtype, found.shape)
    terms = x.double().abs() @ weight.double().abs().T
    # Subnormal numbers lose bits, or all of them.
    own = torch.finfo(x.dtype)
    bound = ROUNDING[x.dtype] * terms + max(own.tiny * own.eps, torch.finfo(torch.float32).tiny)
    assert ((found.double() - x.double() @ weight.double().T).abs() <= bound).all()


def check_alone(product, found, x):
    """Each row is bit-identical to the row alone."""
    assert torch.equal(torch.cat([product(row[None]) for row in x]), found)


cases = {
    "rows": st.sampled_from(ROWS),
    # Whole tiles of inputs use other instructions.
    "inputs": st.integers(1, 200) | st.sampled_from([64, 128, 192, 320, 448]),
    "outputs": st.integers(1, 150),
    "dtype": st.sampled_from(sorted(DTYPES, key=str)),
    # Each kind of each dtype is compiled: of the quick tests, one.
    "kind": st.sampled_from(KINDS if settings.default.max_examples > 20 else KINDS[:1]),
    "seed": st.integers(0, 1000),
}


@settings(deadline=None)
@given(**cases)
def test_floats(rows, inputs, outputs, dtype, kind, seed):
    """For any sizes."""
    x, weight = numbers(rows, inputs, dtype, seed), numbers(outputs, inputs, dtype, seed + 1)
    code = library(dtype, kind)

    found = code.float_gemm(x, weight)

    check_near(found, x, weight)
    check_alone(lambda row: code.float_gemm(row, weight), found, x)


@settings(deadline=None)
@given(**cases)
def test_integers_of_8_bits(rows, inputs, outputs, dtype, kind, seed):
    """Bit-identical to int8_activation_split.split_matmul, which multiplies prompts."""
    x = numbers(rows, inputs, dtype, seed)
    layer = Int8Linear.of(numbers(outputs, inputs, dtype, seed + 1), None)

    found = library(dtype, kind).int8_gemm(x, layer.quantized, layer.scale)

    check_near(found, x, layer.dequantized(torch.float64))
    if can_split(dtype, inputs):
        expected = split_matmul(x, pack_weights(layer.quantized), layer.scale).to(dtype)
        assert torch.equal(expected, found)


@settings(deadline=None)
@given(**{**cases, "inputs": st.integers(1, 6).map(GROUP.__mul__)})
def test_integers_of_4_bits(rows, inputs, outputs, dtype, kind, seed):
    """With scale and zero of each group."""
    x = numbers(rows, inputs, dtype, seed)
    layer = Int4Linear.of(numbers(outputs, inputs, dtype, seed + 1), None)
    code = library(dtype, kind)

    found = code.int4_gemm(x, layer.packed, layer.levels)

    check_near(found[:, :outputs].contiguous(), x, layer.dequantized(torch.float64))
    check_alone(lambda row: code.int4_gemm(row, layer.packed, layer.levels), found, x)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_in_its_row(kind):
    """All results of the row are NaN, and no other row's."""
    x = numbers(5, 64, torch.float32, 0)
    x[1, 3], x[2, 40], x[4] = float("nan"), float("inf"), 0
    layer = Int8Linear.of(numbers(30, 64, torch.float32, 1), None)

    found = library(torch.float32, kind).int8_gemm(x, layer.quantized, layer.scale)

    assert [False, True, True, False, False] == found.isnan().all(dim=1).tolist()
    assert [True, False, False, True, True] == found.isfinite().all(dim=1).tolist()
    assert not found[4].any()


@pytest.mark.mostly_slow(every=3)
@pytest.mark.parametrize("kind", KINDS)
def test_several_threads(kind):
    """Outputs divided among several threads, with a remainder."""
    x, weight = numbers(5, 576, torch.bfloat16, 0), numbers(1539, 576, torch.bfloat16, 1)
    found = library(torch.bfloat16, kind).float_gemm(x, weight)

    check_near(found, x, weight)


def test_takes_its_own_dtype_and_rows():
    """A call with others raises; when programs are compiled, torch takes them."""
    code = library(torch.float32, KINDS[0])

    assert code.takes(torch.zeros(5, 3))
    assert not code.takes(torch.zeros(3, 3))
    assert not code.takes(torch.zeros(52, 3))
    assert code.takes(torch.zeros(52, 3), MOST_ROWS_BY_4_BITS)
    assert not code.takes(torch.zeros(5, 3, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"the rows must be one of \[1, 2, 5, 9, 13, 52\]: got 3"):
        code.float_gemm(torch.zeros(3, 3), torch.zeros(2, 3))


def test_the_environment_is_restored(monkeypatch):
    """After programs are linked."""
    for before in (None, "/somewhere"):
        monkeypatch.delenv("LIBRARY_PATH", raising=False)
        if before:
            monkeypatch.setenv("LIBRARY_PATH", before)
        with library(torch.float32, KINDS[0]).linked():
            assert os.environ["LIBRARY_PATH"] != before
        assert before == os.environ.get("LIBRARY_PATH")
