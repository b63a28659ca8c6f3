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

_RANK, _RANKS = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
"""What ``torchrun`` says to a process: which of those on this machine it is, and how many there are."""

_READ_AT_START = (CORES, CACHE_FOLDER)


@contextlib.contextmanager
def environment_variables(wanted: Mapping[str, str]) -> Iterator[None]:
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


def cores_of_rank(cores: str | None) -> str | None:
    """
    Which cores this process gets as one of several that ``torchrun`` has started on this machine.

    Args:
        cores: Those of all of them, such as ``"4-7"``. None: the first, as many as there are processes.

    Returns:
        Its equal share, in order. None if a launcher has given it cores of its own, and nobody says
        otherwise.

    Raises:
        ValueError: They cannot be divided equally.
    """
    if cores is None and CORES in os.environ:
        return None
    rank, ranks = int(os.environ.get(_RANK, "0")), int(os.environ.get(_RANKS, "1"))
    every = list(range(ranks)) if cores is None else _numbers(cores)
    share = len(every) // ranks
    if len(every) != share * ranks:
        raise ValueError(f"'cores' must be as many for each of {ranks} processes: got {cores!r}")
    return ",".join(map(str, every[rank * share : (rank + 1) * share]))


def _numbers(cores: str) -> list[int]:
    """``"0,4-6"`` is 0, 4, 5 and 6."""
    bounds = ([int(end) for end in part.split("-")] for part in cores.split(","))
    return [core for ends in bounds for core in range(ends[0], ends[-1] + 1)]


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
