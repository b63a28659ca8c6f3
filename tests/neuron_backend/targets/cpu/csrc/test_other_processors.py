"""Products as other processors compute them: in AMX tiles, emulated, and with AVX2."""

import ctypes
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from decodekit.neuron_backend.artifacts.machine import instruction_sets
from decodekit.neuron_backend.quantization.int4_linear import GROUP, Int4Linear
from decodekit.neuron_backend.quantization.int8_blocks import to_blocks
from decodekit.neuron_backend.quantization.int8_linear import Int8Linear
from decodekit.neuron_backend.targets.cpu import aoti
from decodekit.neuron_backend.targets.cpu.kernel_library import SOURCE, Library

from ..test_kernel_library import check_alone, check_near, numbers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not aoti.has_compiler(), reason="needs a C++ compiler"),
    pytest.mark.skipif("avx512_vnni" not in instruction_sets(), reason="these are built with AVX-512"),
]

TORCH = Path(torch.__file__).parent
CPP_TYPES = {torch.float32: "float", torch.bfloat16: "c10::BFloat16"}


TILES = ["-march=native", "-DDECODEKIT_TILED", "-DCPU_CAPABILITY=AVX512", "-DCPU_CAPABILITY_AVX512"]
TILES += ["-include", str(Path(__file__).parent / "emulated_tiles.h")]
FLAGS = {
    "tiles": TILES,
    "AVX2": ["-march=haswell", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"],
}


@pytest.fixture(scope="module", params=list(CPP_TYPES), ids=str)
def dtype(request):
    """Of inputs."""
    return request.param


@pytest.fixture(scope="module", params=list(FLAGS))
def kernels(request, dtype, tmp_path_factory):
    """Those of another processor, which this one can run."""
    made = tmp_path_factory.mktemp("kernels") / "kernels.so"
    flags = ["-std=c++20", "-O2", "-ffp-contract=off", "-fopenmp", "-fPIC", "-shared", "-w"]
    includes = [f"-I{TORCH / path}" for path in ("include", "include/torch/csrc/api/include")]
    libraries = [f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10"]
    flags += [*FLAGS[request.param], f"-DDECODEKIT_NUMBER={CPP_TYPES[dtype]}"]
    command = [os.environ.get("CXX", "g++"), *flags, *includes, str(SOURCE), "-o", str(made), *libraries]
    subprocess.run(command, check=True)
    return Library(made, dtype, ctypes.CDLL(str(made)))


@cache
def loops(dtype):
    """Those of this processor, without tiles."""
    return Library.compiled(dtype, tiles=False)


cases = {
    "rows": st.sampled_from([1, 2, 3, 5, 6, 8, 9, 17, 40]),
    "outputs": st.integers(17, 100),
    "seed": st.integers(0, 100),
}


@settings(deadline=None)
@given(**cases, inputs=st.sampled_from([64, 128, 192, 320, 35]))
def test_integers_of_8_bits(kernels, dtype, rows, inputs, outputs, seed):
    """The bits of this processor's loops."""
    x = numbers(rows, inputs, dtype, seed)
    layer = Int8Linear.of(numbers(outputs, inputs, dtype, seed + 1), None)
    blocks = to_blocks(layer.quantized)

    found = kernels.int8_gemm(x, blocks, layer.scale)

    assert torch.equal(loops(dtype).int8_gemm(x, blocks, layer.scale), found)


@settings(deadline=None)
@given(**cases, groups=st.integers(1, 6))
def test_integers_of_4_bits(kernels, dtype, rows, groups, outputs, seed):
    """Near the exact product, and the same bits for each row alone."""
    x = numbers(rows, groups * GROUP, dtype, seed)
    layer = Int4Linear.of(numbers(outputs, groups * GROUP, dtype, seed + 1), None)

    found = kernels.int4_gemm(x, layer.packed, layer.levels)

    check_near(found[:, :outputs].contiguous(), x, layer.dequantized(torch.float64))
    check_alone(lambda row: kernels.int4_gemm(row, layer.packed, layer.levels), found, x)


@settings(deadline=None)
@given(**{**cases, "outputs": st.integers(32, 100)}, blocks=st.integers(1, 6))
def test_floats(kernels, dtype, rows, blocks, outputs, seed):
    """Likewise."""
    x, weight = numbers(rows, 32 * blocks, dtype, seed), numbers(outputs, 32 * blocks, dtype, seed + 1)

    found = kernels.float_gemm(x, weight)

    check_near(found, x, weight)
    check_alone(lambda row: kernels.float_gemm(row, weight), found, x)
