"""
Vector instructions that Inductor generates code for, without its probes.

Inductor compiles, links and loads a program for each instruction set that the processor has: seven seconds in
all. Whether the compiler takes the flags of the set says as much.
"""

import subprocess
from functools import cache
from typing import Any
from unittest import mock


@cache
def vector_instructions() -> Any:
    """Inductor's name for this CPU's vector instructions, which its later code generation uses as well."""
    # Imported on demand: takes a second or two, and only compiling needs it.
    from torch._inductor.cpu_vec_isa import VecISA, pick_vec_isa

    # The answers are kept for the process.
    with mock.patch.object(VecISA, "check_build", _is_compiled):
        return pick_vec_isa()


def vector_bits() -> int:
    """Bits of a vector of :func:`vector_instructions`; 1, Inductor's word for none, if there are none."""
    found = vector_instructions()
    return int(found.bit_width()) if found else 1


def _is_compiled(instructions: Any, _: str) -> bool:
    """Whether the compiler knows these *instructions*, of which the processor is known to have all."""
    return _takes(instructions._arch_flags)


@cache
def _takes(flags: str) -> bool:
    from torch._inductor.cpp_builder import get_cpp_compiler

    command = [get_cpp_compiler(), *flags.split(), "-x", "c++", "-c", "-o", "/dev/null", "-"]
    return subprocess.run(command, input=b"int known;", capture_output=True, check=False).returncode == 0
