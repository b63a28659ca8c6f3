"""Limits of instruction sets, and what they leave out."""

import pytest
import torch

from decodekit.neuron_backend.targets.cpu import kernel_library, kernel_selection
from decodekit.neuron_backend.targets.cpu.instruction_limit import instruction_limit
from decodekit.neuron_backend.targets.cpu.kernel_library import NO_LIBRARY


@pytest.mark.parametrize(
    ("environment", "limit"),
    [
        ({}, "amx"),
        ({"ONEDNN_MAX_CPU_ISA": "DEFAULT"}, "amx"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, "amx"),
        ({"ONEDNN_MAX_CPU_ISA": "avx512_core_amx_fp16"}, "amx"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, "avx512"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}, "avx512"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI"}, "avx2"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX"}, "portable"),
        ({"ONEDNN_MAX_CPU_ISA": "SSE41"}, "portable"),
        ({"DECODEKIT_MAX_CPU_ISA": "AVX512"}, "avx512"),
        ({"DECODEKIT_MAX_CPU_ISA": "amx", "ONEDNN_MAX_CPU_ISA": "AVX2"}, "amx"),
        ({"ATEN_CPU_CAPABILITY": "avx512"}, "amx"),
        ({"ATEN_CPU_CAPABILITY": "avx2"}, "avx2"),
        ({"ATEN_CPU_CAPABILITY": "default"}, "portable"),
        ({"ATEN_CPU_CAPABILITY": "avx2", "DECODEKIT_MAX_CPU_ISA": "amx"}, "avx2"),
        ({"ATEN_CPU_CAPABILITY": "avx2", "DECODEKIT_MAX_CPU_ISA": "portable"}, "portable"),
        ({"ATEN_CPU_CAPABILITY": "sve256"}, "amx"),
    ],
)
def test_limit(environment, limit):
    """The own variable counts before oneDNN's; torch's binds its compiler, so it lowers both."""
    assert limit == instruction_limit(environment)


def test_another_value_is_refused():
    """Of our own variable; oneDNN's is oneDNN's."""
    with pytest.raises(
        ValueError, match="'DECODEKIT_MAX_CPU_ISA' must be one of amx, avx512, avx2, portable: got 'sse'"
    ):
        instruction_limit({"DECODEKIT_MAX_CPU_ISA": "sse"})
    assert instruction_limit({"ONEDNN_MAX_CPU_ISA": "what"}) == "amx"


@pytest.mark.parametrize("limit", ["amx", "avx512", "avx2", "portable"])
def test_kernels_are_compiled_within_the_limit(monkeypatch, limit):
    """And tiles are no choice without them."""
    asked = {}
    monkeypatch.setattr(
        kernel_library.Library, "compiled", lambda dtype, **options: asked.update(options) or NO_LIBRARY
    )
    monkeypatch.setattr(kernel_selection, "instruction_sets", lambda: ["amx_bf16", "amx_tile"])
    monkeypatch.setenv("DECODEKIT_MAX_CPU_ISA", limit)
    kernel_selection._limited.cache_clear()

    try:
        assert kernel_selection.library(torch.bfloat16) is NO_LIBRARY
    finally:
        kernel_selection._limited.cache_clear()
    assert asked == {"tiled": False, "limit": limit}
    assert kernel_selection.tiled_dtypes() == ({torch.bfloat16} if limit == "amx" else set())


def command_line(limit):
    """That compiles the kernels within a limit."""
    from torch._inductor.cpp_builder import CppBuilder

    options = kernel_library.compiler_options(torch.bfloat16, limit=limit)
    return CppBuilder("name", ["source.cpp"], options, "folder").get_command_line()


@pytest.mark.parametrize("limit", ["amx", "avx512", "avx2", "portable"])
def test_tiles_are_left_out_by_a_definition(limit):
    """So that kept kernels of another limit are others."""
    assert ("-DDECODEKIT_NO_TILES" in command_line(limit)) is (limit != "amx")


def test_longer_vectors_are_left_out_by_a_flag(monkeypatch):
    """Where the processor has them."""
    from torch._inductor import cpu_vec_isa

    found = {}
    for vectors in (cpu_vec_isa.VecAVX512(), cpu_vec_isa.VecAVX2()):
        monkeypatch.setattr(kernel_library, "vector_instructions", lambda vectors=vectors: vectors)
        found[str(vectors)] = command_line("avx2")

    assert all("-mno-avx512f" in command for command in found.values())
    assert all("CPU_CAPABILITY_AVX2" in command for command in found.values())
