"""Programs that call the kernels: the library's flags, those of other CPUs, and those of sanitizers."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import attrs
import torch

from decodekit.neuron_backend.artifacts.machine import instruction_sets
from decodekit.neuron_backend.targets.cpu.instruction_limit import Limit
from decodekit.neuron_backend.targets.cpu.kernel_library import SOURCE, compiler_options

HERE = Path(__file__).parent

SANITIZERS = (
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
    "-D_GLIBCXX_ASSERTIONS",
    # A fifth of the time to compile, and inlined code is instrumented all the same.
    "-O1",
)

ENVIRONMENT = {
    # Leaks are looked for by a tracer, which containers forbid. Frames of GCC 12's fake stack are not aligned
    # for vectors of 64 bytes, which it stores in them all the same.
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    # Threads that wait for a request leave the processor to who makes it.
    "OMP_WAIT_POLICY": "passive",
}
"""Environment of the programs."""

AVX512 = frozenset({"avx512bw", "avx512dq", "avx512f", "avx512vl"})

WITHOUT_AMX = ("-mno-amx-tile", "-mno-amx-int8")
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
"""Debian's packages g++-aarch64-linux-gnu and qemu-user have them."""

NEON = ("-DCPU_CAPABILITY_NEON",)
"""As Inductor compiles for aarch64 (torch 2.13, _inductor/cpu_vec_isa.py, ``VecNEON``), but without Sleef."""

EMULATED_TILES = ("-include", str(HERE / "emulated_tiles.h"))

# A third of the time to compile.
EMULATED_AVX512 = ("-include", str(HERE / "emulated_avx512.h"), "-O1")

WITHOUT_AVX512 = ("-UCPU_CAPABILITY_AVX512", "-mno-avx512f", *WITHOUT_AMX)


@attrs.frozen
class Kind:
    """A way to compile the kernels."""

    name: str
    flags: tuple[str, ...] = ()
    """Flags after the library's own."""

    needs: frozenset[str] = attrs.field(default=frozenset[str](), converter=frozenset[str])
    """Instruction sets without which it does not run."""

    limit: Limit = "amx"
    tiled: bool = False
    sanitized: bool = True

    emulated: bool = False
    """Whether it is for aarch64, which an emulator runs."""

    def missing(self) -> frozenset[str]:
        """What it needs and this machine lacks."""
        programs = (CROSS_COMPILER, EMULATOR[0]) if self.emulated else ()
        absent = {program for program in programs if shutil.which(program) is None}
        return self.needs - set(instruction_sets()) | absent


KINDS = (
    # At the library's own level of optimisation: guard pages alone tell what is wrong.
    Kind("as compiled by the library", sanitized=False),
    Kind("for this processor"),
    Kind("portable", limit="portable"),
    Kind(
        "AVX-512 without VNNI",
        ("-mno-avx512vnni", "-mno-avx512bf16", "-mno-avx512vbmi", *WITHOUT_AMX),
        needs=AVX512,
    ),
    Kind("AVX2", limit="avx2", needs={"avx2", "fma"}),
    Kind(
        "without vectors",
        (*WITHOUT_AVX512, "-UCPU_CAPABILITY_AVX2", "-mno-avx", "-march=x86-64"),
        needs={"sse2"},
        limit="portable",
    ),
    Kind("AMX", tiled=True, needs={"amx_int8", "amx_tile"}),
    Kind(
        "emulated AMX",
        EMULATED_TILES,
        needs=AVX512,
        tiled=True,
    ),
    Kind("emulated AVX-512", EMULATED_AVX512, needs={"avx2", "f16c", "fma"}, limit="avx2"),
    Kind(
        "emulated AVX-512 and AMX",
        ("-UDECODEKIT_NO_TILES", *EMULATED_TILES, *EMULATED_AVX512),
        needs={"avx2", "f16c", "fma"},
        limit="avx2",
        tiled=True,
    ),
    Kind("aarch64", NEON, sanitized=False, emulated=True),
)


def build(kind: Kind, dtype: torch.dtype, folder: Path) -> Path:
    """
    Compile driver.cpp and the kernels that it includes.

    Args:
        kind: How.

        dtype: Dtype of the inputs.

        folder: Where the program is written.
    """
    target = folder / "driver"
    sanitizers = SANITIZERS if kind.sanitized else ()
    made = target.with_suffix(".aarch64") if kind.emulated else target
    subprocess.run([*command_line(kind, dtype, HERE / "driver.cpp", made), *sanitizers], check=True)
    if kind.emulated:
        target.write_text(f"#!/bin/sh\nexec {shlex.join([*EMULATOR, str(made)])}\n")
        target.chmod(0o755)
    return target


def command_line(kind: Kind, dtype: torch.dtype, source: Path, target: Path) -> list[str]:
    """The command that compiles and links *source*, without sanitizers."""
    from torch._inductor.cpp_builder import CppBuilder

    options = compiler_options(dtype, tiled=kind.tiled, limit=kind.limit)
    command = CppBuilder(target.stem, [str(source)], options, str(target.parent)).get_command_line()
    compile_only = shlex.split(command)
    compile_only.remove("-c")
    if kind.emulated:
        # Without the names of this processor's instructions.
        rest = shlex.split(shlex.join(compile_only[1:]).replace("-D CPU_CAPABILITY_", "-DCPU_CAPABILITY_"))
        named = ("-m", "-DCPU_CAPABILITY_")
        compile_only = [CROSS_COMPILER, *(flag for flag in rest if not flag.startswith(named))]
    compile_only[compile_only.index("-o") + 1] = str(target)
    # Warnings are of the compiler's own headers.
    return [*compile_only, f"-I{SOURCE.parent}", "-w", "-Wno-psabi", *kind.flags]


def has_sanitizers(folder: Path) -> bool:
    """Whether the compiler has them; *folder* is where this is tried."""
    source, compiler = folder / "empty.cpp", os.environ.get("CXX", "g++")
    source.write_text("int main() {}\n")
    flags = [flag for flag in SANITIZERS if flag.startswith("-fsanitize")]
    command = [compiler, *flags, str(source), "-o", str(folder / "empty")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
