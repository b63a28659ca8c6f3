"""Products by weights against torch's, compiled for this CPU and portably."""

import hashlib
import os
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from decodekit.neuron_backend.artifacts.machine import instruction_sets
from decodekit.neuron_backend.quantization.int4_linear import GROUP, Int4Linear
from decodekit.neuron_backend.quantization.int8_blocks import to_blocks
from decodekit.neuron_backend.quantization.int8_linear import MOST_INPUTS, Int8Linear
from decodekit.neuron_backend.targets.cpu import kernel_library
from decodekit.neuron_backend.targets.cpu.kernel_library import DTYPES, Library
from decodekit.neuron_backend.threads import on_threads

from ....int8_split import split_product
from ....toolchain_mark import needs_toolchain

pytestmark = needs_toolchain

# One row, several, and more than are held in registers or cache at once, with a remainder.
ROWS = (1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 52, 130)

# Rounding of a float32 sum, and of a result's own dtype.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


OPTIONS: dict[str, Any] = {"for this processor": {}, "portable": {"limit": "portable"}}
# Without longer vectors or tiles, these are the first again.
if "avx512f" in instruction_sets():
    OPTIONS["AVX2"] = {"limit": "avx2"}
if "amx_tile" in instruction_sets():
    OPTIONS["tiled"] = {"tiled": True}
KINDS = tuple(OPTIONS)


@cache
def library(dtype, kind):
    """Compiled once."""
    return Library.compiled(dtype, **OPTIONS[kind])


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
    # Whole tiles of inputs use other instructions, and more than 512 are added up in chunks.
    "inputs": st.integers(1, 200) | st.sampled_from([64, 128, 192, 320, 448, 516, 1025]),
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
def test_floats_by_columns(rows, inputs, outputs, dtype, kind, seed):
    """Weights of the other layout."""
    x, weight = numbers(rows, inputs, dtype, seed), numbers(outputs, inputs, dtype, seed + 1)
    code = library(dtype, kind)
    columns = weight.T.contiguous()

    found = code.column_gemm(x, columns)

    check_near(found, x, weight)
    check_alone(lambda row: code.column_gemm(row, columns), found, x)


@settings(deadline=None)
@given(**cases, experts=st.integers(1, 5), by_columns=st.booleans())
def test_experts(rows, inputs, outputs, dtype, kind, seed, experts, by_columns):
    """Each row is bit-identical to its product by its expert's weights alone."""
    x = numbers(rows, inputs, dtype, seed)
    weights = numbers(experts * outputs, inputs, dtype, seed + 1).view(experts, outputs, inputs)
    chosen = torch.randint(experts, (rows,), generator=torch.Generator().manual_seed(seed))
    stored = weights.mT.contiguous() if by_columns else weights
    code = library(dtype, kind)
    product = code.column_gemm if by_columns else code.float_gemm

    found = code.expert_gemm(x, chosen, stored, by_columns, 0)

    alone = [product(row[None], stored[expert]) for row, expert in zip(x, chosen, strict=True)]
    assert torch.equal(found, torch.cat(alone))


@settings(deadline=None)
@given(
    rows=st.integers(1, 5),
    size=st.integers(1, 300),
    seed=st.integers(0, 1000),
    values=st.sampled_from([2, 20, 10_000]),
    data=st.data(),
)
def test_top_k(rows, size, seed, values, data):
    """Torch's, with as many ties, and with NaN."""
    k = data.draw(st.integers(1, size))
    x = torch.randint(values, (rows, size), generator=torch.Generator().manual_seed(seed)).float()
    x[0, seed % size] = data.draw(st.sampled_from([1.0, float("nan"), float("-inf")]))

    found = library(torch.float32, KINDS[0]).top_k(x, k)

    expected = x.topk(k)
    assert torch.equal(found[1], expected.indices)
    torch.testing.assert_close(found[0], expected.values, equal_nan=True, rtol=0, atol=0)


# More rows and inputs than are multiplied at a time, with a remainder.
int8_cases = {
    **cases,
    "rows": st.sampled_from([*ROWS, 247]),
    "inputs": cases["inputs"] | st.sampled_from([512, 576, 1100]),
}


@settings(deadline=None)
@given(**int8_cases)
def test_integers_of_8_bits(rows, inputs, outputs, dtype, kind, seed):
    """Bit-identical to the sums of terms."""
    x = numbers(rows, inputs, dtype, seed)
    layer = Int8Linear.of(numbers(outputs, inputs, dtype, seed + 1), None)

    found = library(dtype, kind).int8_gemm(x, to_blocks(layer.quantized), layer.scale)

    check_near(found, x, layer.dequantized(torch.float64))
    assert torch.equal(split_product(x, layer.quantized, layer.scale), found)


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

    found = library(torch.float32, kind).int8_gemm(x, to_blocks(layer.quantized), layer.scale)

    assert [False, True, True, False, False] == found.isnan().all(dim=1).tolist()
    assert [True, False, False, True, True] == found.isfinite().all(dim=1).tolist()
    assert not found[4].any()


@pytest.mark.mostly_slow(every=6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 5, 9, 67])
def test_several_threads(kind, rows):
    """Outputs divided among several threads, with a remainder: the same bits."""
    x, weight = numbers(rows, 576, torch.bfloat16, 0), numbers(1539, 576, torch.bfloat16, 1)
    by_8_bits, by_4_bits = Int8Linear.of(weight, None), Int4Linear.of(weight, None)
    code, found = library(torch.bfloat16, kind), []
    for threads in (1, 2, 3):
        with on_threads(threads):
            found.append(
                (
                    code.float_gemm(x, weight),
                    code.int8_gemm(x, to_blocks(by_8_bits.quantized), by_8_bits.scale),
                    code.int4_gemm(x, by_4_bits.packed, by_4_bits.levels),
                )
            )

    check_near(found[0][0], x, weight)
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_int8_sums_are_exact_up_to_32_bits(dtype):
    """Whatever offset a CPU's unsigned format adds, and however many terms it joins."""
    rows = torch.full((2, MOST_INPUTS), 127.0, dtype=dtype)
    rows[1] = -127
    # A whole block of outputs and some more.
    scales = torch.ones(20, dtype=dtype)
    weights = torch.full((len(scales), MOST_INPUTS), 127, dtype=torch.int8)
    for kind in KINDS:
        found = library(dtype, kind).int8_gemm(rows, to_blocks(weights), scales)

        assert torch.equal(split_product(rows, weights, scales), found)
        assert found[0, 0] == -found[1, 0] == torch.tensor(127.0 * 127 * MOST_INPUTS, dtype=dtype)


def test_takes_its_own_dtype():
    """Torch takes other inputs when programs are compiled."""
    code = library(torch.float32, KINDS[0])

    assert code.takes(torch.float32)
    assert not code.takes(torch.bfloat16)


def test_the_environment_is_restored(monkeypatch):
    """After programs are linked."""
    for before in (None, "/somewhere"):
        monkeypatch.delenv("LIBRARY_PATH", raising=False)
        if before:
            monkeypatch.setenv("LIBRARY_PATH", before)
        with library(torch.float32, KINDS[0]).linked():
            assert os.environ["LIBRARY_PATH"] != before
        assert before == os.environ.get("LIBRARY_PATH")


def test_a_kept_library_that_cannot_be_loaded_is_made_again(tmp_path, monkeypatch):
    """Such as one in a file system without execution."""
    (tmp_path / "csrc").mkdir()
    source = tmp_path / "csrc" / "two.cpp"
    source.write_text('extern "C" int two() { return 2; }')
    monkeypatch.setattr(kernel_library, "SOURCE", source)
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "cache"))
    whole = Library.compiled(torch.float32)
    # Elsewhere, since a path that is loaded already is not read again.
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "damaged"))
    damaged = (tmp_path / "cache").rename(tmp_path / "damaged") / "compiled"
    for kept in [*damaged.glob("*.o"), *damaged.glob("*.so")]:
        # The library in memory keeps its own file.
        kept.unlink()
        kept.touch(mode=0o700)
        kept.write_bytes(b"no library")
        kept.with_name(f"{kept.name}.sha256").write_text(hashlib.sha256(b"no library").hexdigest())

    made = Library.compiled(torch.float32)

    assert whole.object_file.name in {path.name for path in damaged.iterdir()}
    assert damaged != made.object_file.parent
    assert 2 == made._code.two()
