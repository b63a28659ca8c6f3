"""
Environment variables of Neuron's runtime and compiler.

Some are read only once, when the runtime starts or first compiles; setting them later has no effect and
is refused. A variable that is already set, such as by a launcher, is never overwritten.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from .detect import runtime_started

CORES = "NEURON_RT_VISIBLE_CORES"
"""Cores of the process, such as ``"0"`` or ``"4-7"``; read when the runtime starts."""

CACHE_FOLDER = "TORCH_NEURONX_NEFF_CACHE_DIR"
"""Folder that keeps compiled programs between processes; read at the first look-up."""

NO_FALLBACK = "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"
"""``"1"``: a program that fails on the device is an error and not run by the host."""

COMPILER_ARGUMENTS = "NEURON_CC_FLAGS"
"""Arguments of neuronx-cc, separated by spaces; read at each compilation."""

LOGICAL_CORES = "NEURON_LOGICAL_NC_CONFIG"
"""Physical cores in each logical core (LNC), read when the runtime starts; the compiler takes ``--lnc``."""

_TWO_LOGICAL_CORES = ("trn2", "trn3")
"""Platforms with two physical cores in a logical one by default (neuronx_distributed, model_utils.py)."""

_RANK, _RANKS = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
"""Variables of ``torchrun``: index of the process on this machine, and number of these processes."""

_READ_AT_START = (CORES, CACHE_FOLDER)

_OURS: dict[str, str] = {}
"""What this process has set itself, which another target may change where it is read again."""


@contextlib.contextmanager
def environment_variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """
    Set variables for this process, all or none; set them back if the body raises.

    Those that a runtime has read which the body started stay: they are what it works with.

    Args:
        wanted: Name to value.

    Raises:
        ValueError: One has another value already, or is set after it was read.
    """
    missing = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
    before = {name: os.environ.get(name) for name in missing}
    for name, value in missing.items():
        ours = name not in _READ_AT_START and before[name] == _OURS.get(name)
        if before[name] is not None and not ours:
            raise ValueError(
                f"{name} must be unset or {value!r}, as the target says: got {os.environ[name]!r}"
            )
        if name in _READ_AT_START and runtime_started():
            raise ValueError(
                f"{name} must be set before the Neuron runtime starts: got {value!r} afterwards; "
                "make this decoder before anything uses the device, or set the variable outside"
            )
    os.environ.update(missing)
    _OURS.update(missing)
    try:
        yield
    except BaseException:
        for name, earlier in before.items():
            if name in _READ_AT_START and runtime_started():
                continue
            if earlier is None:
                os.environ.pop(name, None)
                _OURS.pop(name, None)
            else:
                os.environ[name] = _OURS[name] = earlier
        raise


def cores_of_rank(cores: str | None) -> str | None:
    """
    The cores of this process, one of several that ``torchrun`` started on this machine.

    Args:
        cores: The cores of all processes, such as ``"4-7"``. None: the first, one per process.

    Returns:
        One of them, in order. None if *cores* is None and a launcher has set the variable.

    Raises:
        ValueError: They are not one for each process: TorchNeuron's process group gives a process no more.
    """
    if cores is None and CORES in os.environ:
        return None
    rank, ranks = int(os.environ.get(_RANK, "0")), int(os.environ.get(_RANKS, "1"))
    every = list(range(ranks)) if cores is None else core_numbers(cores)
    if len(every) != ranks:
        raise ValueError(f"'cores' must be one for each of {ranks} processes: got {cores!r}")
    return str(every[rank])


def core_numbers(cores: str) -> list[int]:
    """
    Core numbers: ``"0,4-6"`` is 0, 4, 5 and 6.

    Raises:
        ValueError: *cores* is not a list of numbers and ascending ranges, or names a core twice.
    """
    if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", cores):
        bounds = [[int(end) for end in part.split("-")] for part in cores.split(",")]
        found = [core for ends in bounds for core in range(ends[0], ends[-1] + 1)]
        if all(ends[0] <= ends[-1] for ends in bounds) and len(set(found)) == len(found):
            return found
    raise ValueError(
        f"'cores' must be numbers and ascending ranges, each core once, such as '0,4-6': got {cores!r}"
    )


def with_logical_cores(arguments: Sequence[str]) -> tuple[str, ...]:
    """
    Add ``--lnc`` to the *arguments* of neuronx-cc where the runtime has been given a number of cores.

    The compiler does not read the runtime's variable, and its default is 2 on Trainium2 and later.

    Raises:
        ValueError: They, or NEURON_CC_FLAGS, give the compiler another number.
    """
    wanted = os.environ.get(LOGICAL_CORES)
    if wanted is None:
        return tuple(arguments)
    given = _given_logical_cores(arguments)
    if set(given) - {wanted}:
        raise ValueError(f"--lnc must be {wanted}, as {LOGICAL_CORES} says: got {', '.join(given)}")
    return tuple(arguments) if given else (*arguments, f"--lnc={wanted}")


def compiled_logical_cores(arguments: str) -> int:
    """
    Physical cores of the logical core that neuronx-cc compiles for.

    Args:
        arguments: Its arguments, as of :func:`with_logical_cores`.

    Raises:
        ValueError: They give several numbers.
    """
    given = sorted(set(_given_logical_cores([arguments])))
    if len(given) > 1:
        raise ValueError(f"--lnc must be one number: got {', '.join(given)}")
    if given:
        return int(given[0])
    from torch_neuronx.utils.utils import get_platform_target

    return 2 if get_platform_target(arguments) in _TWO_LOGICAL_CORES else 1


def _given_logical_cores(arguments: Sequence[str]) -> list[str]:
    every = " ".join([os.environ.get(COMPILER_ARGUMENTS, ""), *arguments])
    return re.findall(r"(?<!\S)(?:--?lnc|--logical-nc-config)[= ]+(\S+)", every)


@contextlib.contextmanager
def compiler_arguments(arguments: Sequence[str]) -> Iterator[None]:
    """Append *arguments* to the compiler's while the body runs."""
    if not arguments:
        yield
        return
    before = os.environ.get(COMPILER_ARGUMENTS)
    # TorchNeuron divides the variable at white space, and knows no quotes.
    os.environ[COMPILER_ARGUMENTS] = " ".join([*([before] if before else []), *arguments])
    try:
        yield
    finally:
        if before is None:
            del os.environ[COMPILER_ARGUMENTS]
        else:
            os.environ[COMPILER_ARGUMENTS] = before
