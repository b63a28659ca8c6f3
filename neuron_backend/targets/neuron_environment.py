"""
The variables that Neuron's runtime and compiler read.

Some are read once, when the runtime starts or first compiles; setting them later does nothing, so
that is refused. None is taken away from whoever has set it, such as a launcher that has given this
process its cores.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

from .detect import runtime_started

CORES = "NEURON_RT_VISIBLE_CORES"
"""Which cores the process gets, such as ``"0"`` or ``"4-7"``; read when the runtime starts."""

CACHE_FOLDER = "TORCH_NEURONX_NEFF_CACHE_DIR"
"""Where compiled programs are kept between processes; read when the first one is looked for."""

NO_FALLBACK = "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"
"""``"1"``: a program that fails is an error, and not run by the host instead."""

COMPILER_ARGUMENTS = "NEURON_CC_FLAGS"
"""Arguments of neuronx-cc, separated by spaces; read at each compilation."""

_READ_AT_START = (CORES, CACHE_FOLDER)


@contextlib.contextmanager
def settled(wanted: Mapping[str, str]) -> Iterator[None]:
    """
    Set variables for this process, all or none; what the body raises takes them back.

    Args:
        wanted: Name to value.

    Raises:
        ValueError: One is set to something else already, or comes too late to be read.
    """
    missing = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
    for name, value in missing.items():
        if name in os.environ:
            raise ValueError(
                f"{name} must be unset or {value!r}, as the target says: got {os.environ[name]!r}"
            )
        if name in _READ_AT_START and runtime_started():
            raise ValueError(
                f"{name} must be set before the Neuron runtime starts: got {value!r} afterwards; "
                "make this decoder before anything uses the device, or set the variable outside"
            )
    os.environ.update(missing)
    try:
        yield
    except BaseException:
        for name in missing:
            os.environ.pop(name, None)
        raise


@contextlib.contextmanager
def compiler_arguments(arguments: Sequence[str]) -> Iterator[None]:
    """Let the compiler have *arguments* after those that it has, while the body runs."""
    if not arguments:
        yield
        return
    before = os.environ.get(COMPILER_ARGUMENTS)
    os.environ[COMPILER_ARGUMENTS] = " ".join([*([before] if before else []), *arguments])
    try:
        yield
    finally:
        if before is None:
            del os.environ[COMPILER_ARGUMENTS]
        else:
            os.environ[COMPILER_ARGUMENTS] = before
