"""Targets by name, and the automatic selection of one."""

import logging

from .target import Target, check_target

_LOG = logging.getLogger(__name__)

NAMES = ("auto", "cpu", "cuda", "eager", "neuron", "neuron-native", "neuron-traced")
"""Names that :func:`target_named` accepts."""


def target_named(name: str) -> Target:
    """
    The target of that *name*, with its defaults; ``"auto"`` is the best that this machine can run.

    Raises:
        ValueError: There is none.
    """
    # Imported on demand: a process rarely uses two targets.
    match name:
        case "auto":
            return automatic_target()
        case "cpu":
            from .cpu.cpu_target import CpuTarget

            return CpuTarget()
        case "cuda":
            from .cuda.cuda_target import cuda_target

            return cuda_target()
        case "eager":
            from .eager_target import EagerTarget

            return EagerTarget()
        case "neuron":
            return neuron_target()
        case "neuron-native":
            from .neuron.native_target import NativeTarget

            return NativeTarget()
        case "neuron-traced":
            from .neuron.traced_target import TracedTarget

            return TracedTarget()
    raise ValueError(f"'target' must be one of {', '.join(NAMES)}: got {name!r}")


def resolve(target: str | Target) -> Target:
    """
    *target* itself, or the one of that name.

    Raises:
        ValueError: No target has that name.

        TypeError: It is not a target, or is a target's class.
    """
    if isinstance(target, str):
        return target_named(target)
    check_target(target)
    return target


def neuron_target() -> Target:
    """
    The target for the installed Neuron packages, with its defaults.

    Raises:
        ValueError: There are none.
    """
    from .neuron.detect import probe

    found = probe()
    if found.kind == "none":
        raise ValueError(f"target 'neuron' needs the packages of AWS Neuron: got\n{found}")
    return target_named(f"neuron-{found.kind}")


def automatic_target() -> Target:
    """
    The target for this machine: a Neuron device, else a GPU, else the compiled CPU, else eager.

    Where it is eager, a warning is logged that says what compiling needs.
    """
    from .cpu import toolchain
    from .cuda.cuda_runtime import CudaRuntime
    from .neuron.detect import probe

    if probe().has_device:
        return target_named("neuron")
    if CudaRuntime().lack() is None:
        return target_named("cuda")
    lack = toolchain.lack()
    if lack is None:
        return target_named("cpu")
    # Python prints warnings to stderr where no log is set up.
    _LOG.warning(
        "the model runs eagerly, which is slower: compiling needs %s: got %s; %s mends it",
        lack.needed,
        lack.found,
        lack.remedy,
    )
    return target_named("eager")
