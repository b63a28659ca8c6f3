"""Products as other processors compute them: with AVX-512 and in AMX tiles, emulated, and with AVX2."""

import ctypes
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from decodekit.neuron_backend.quantization.int4_linear import GROUP, Int4Linear
from decodekit.neuron_backend.quantization.int8_blocks import to_blocks
from decodekit.neuron_backend.quantization.int8_linear import Int8Linear
from decodekit.neuron_backend.targets.cpu.kernel_library import SOURCE, Library

from .....fuzz.kernels.builds import KINDS, command_line
from .....toolchain_mark import needs_toolchain
from ..test_kernel_library import check_alone, check_near, numbers

pytestmark = [
    pytest.mark.slow,
    needs_toolchain,
]

OTHERS = [kind for kind in KINDS if kind.name == "AVX2" or kind.name.startswith("emulated A")]


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request):
    """Of inputs."""
    return request.param


@pytest.fixture(scope="module", params=OTHERS, ids=lambda kind: kind.name)
def kernels(request, dtype, tmp_path_factory):
    """Those of another processor, which this one can run."""
    if missing := request.param.missing():
        pytest.skip(f"this CPU has no {', '.join(sorted(missing))}")
    made = tmp_path_factory.mktemp("kernels") / "kernels.so"
    linked = ["-shared", "-fPIC", f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-lc10"]
    subprocess.run([*command_line(request.param, dtype, SOURCE, made), *linked], check=True)
    return Library(made, dtype, ctypes.CDLL(str(made)))


@cache
def portable(dtype):
    """Those that every processor can run."""
    return Library.compiled(dtype, limit="portable")


cases = {
    "rows": st.sampled_from([1, 2, 3, 5, 6, 8, 9, 17, 40]),
    "outputs": st.integers(17, 100),
    "seed": st.integers(0, 100),
}


@settings(deadline=None)
@given(**cases, inputs=st.sampled_from([64, 128, 192, 320, 35]))
def test_integers_of_8_bits(kernels, dtype, rows, inputs, outputs, seed):
    """The bits of the portable loops."""
    x = numbers(rows, inputs, dtype, seed)
    layer = Int8Linear.of(numbers(outputs, inputs, dtype, seed + 1), None)
    blocks = to_blocks(layer.quantized)

    found = kernels.int8_gemm(x, blocks, layer.scale)

    assert torch.equal(portable(dtype).int8_gemm(x, blocks, layer.scale), found)


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
