"""Targets by their names."""

from .target import Target, check_target

NAMES = ("auto", "cpu", "cuda", "eager", "neuron", "neuron-native", "neuron-traced")
"""What :func:`target_named` takes."""


def target_named(name: str) -> Target:
    """
    The target of that *name*, with its defaults; of ``"auto"`` the best that this machine can run.

    Raises:
        ValueError: There is none.
    """
    # All are built on decoders, and nobody needs two.
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
        ValueError: No target is called so.

        TypeError: It is no target: something else, or the class of one.
    """
    if isinstance(target, str):
        return target_named(target)
    check_target(target)
    return target


def neuron_target() -> Target:
    """
    The target for the Neuron packages that this machine has, with its defaults.

    Raises:
        ValueError: It has none.
    """
    from .neuron.detect import probe

    found = probe()
    if found.kind == "none":
        raise ValueError(f"target 'neuron' needs the packages of AWS Neuron: got\n{found}")
    return target_named(f"neuron-{found.kind}")


def automatic_target() -> Target:
    """The target for what this machine has: a Neuron device, else a GPU, else a compiler, else nothing."""
    from .cpu.aoti import has_compiler
    from .cuda.cuda_runtime import CudaRuntime
    from .neuron.detect import probe

    if probe().has_device:
        return target_named("neuron")
    if CudaRuntime().lack() is None:
        return target_named("cuda")
    return target_named("cpu" if has_compiler() else "eager")
