"""What compiles the programs of a decoder."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    from ..artifacts.fingerprint import Fitted
    from ..artifacts.manifest import Manifest
    from ..artifacts.packages import Package
    from ..static_decoder import StaticDecoder

NAMES = ("auto", "cpu", "cuda", "eager", "neuron", "neuron-native", "neuron-traced")
"""What :func:`target_named` takes."""

NOT_SAVED = "the folder holds no programs with this chain and selection: compile_decoder makes them"
"""Why a loaded decoder does not choose, if it was saved with another chain or with none."""


class Target(Protocol):
    """
    A compiler and the machine that it compiles for.

    ``compile_decoder(target=...)`` takes one, or the name of one with its defaults.
    """

    @property
    def name(self) -> str:
        """What a decoder made by it has as ``target``, and what a saved one is marked with."""
        ...

    def require(self) -> None:
        """
        Refuse a machine on which nothing can be compiled, before a model is loaded.

        Raises:
            ValueError: Something is not there; the message says what, and where it comes from.
        """
        ...

    def default_widths(self, max_length: int) -> tuple[int, ...]:
        """Columns of the forwards of a decoder of so many positions, if none are asked for."""
        ...

    def compile(self, decoder: "StaticDecoder") -> None:
        """
        Put compiled programs into an eager *decoder*, run each once, and compare with the stock model.

        ``decoder.steps()`` are the modules and their widths. Those of ``decoder.fused_steps()`` give
        a choice before the logits; a target that leaves them out leaves the choice to the host,
        and ``decoder.explain()`` says so.

        Raises:
            UnsupportedArchitecture: The logits differ.
        """
        ...

    def check(self, manifest: "Manifest") -> None:
        """
        Refuse programs that this machine cannot run, before anything is loaded.

        Raises:
            ValueError: A version or a processor does not match.
        """
        ...

    def load(self, decoder: "StaticDecoder", packages: Mapping[str, "Package"], trust_programs: bool) -> None:
        """
        Put saved programs into an eager *decoder*, and run each once.

        If those of ``decoder.fused_steps()`` are not among them, the choice is left to the host
        (``decoder.leave_unfused``): a load is not to compile what was never asked for.

        Args:
            decoder: With its weights.

            packages: File name to what was saved.

            trust_programs: Run native code that this machine does not know. Without it, such
                programs are compiled again.

        Raises:
            ValueError: They do not fit.
        """
        ...


@runtime_checkable
class RunsStored(Protocol):
    """A target whose saved programs take tensors by name, so that no model is built to run them."""

    def load_stored(
        self,
        decoder: "StaticDecoder",
        packages: Mapping[str, "Package"],
        fitted: "Fitted",
        tensors: Mapping[str, Tensor],
    ) -> None:
        """
        Put saved programs, which may be run, into a *decoder* that has none.

        Args:
            decoder: With its cache. Nothing has asked for its step.

            packages: File name to what was saved.

            fitted: What the programs have to fit, beside the decoder.

            tensors: Weights and buffers, by the names that they have in the decoder's step.

        Raises:
            ValueError: They do not fit, or one is missing.
        """
        ...


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
            from .cpu_target import CpuTarget

            return CpuTarget()
        case "cuda":
            from .cuda_target import cuda_target

            return cuda_target()
        case "eager":
            from .eager_target import EagerTarget

            return EagerTarget()
        case "neuron":
            return neuron_target()
        case "neuron-native":
            from .native_target import NativeTarget

            return NativeTarget()
        case "neuron-traced":
            from .traced_target import TracedTarget

            return TracedTarget()
    raise ValueError(f"'target' must be one of {', '.join(NAMES)}: got {name!r}")


def check_target(target: object) -> None:
    """
    Refuse what is no target.

    Raises:
        TypeError: It is none: something else, or the class of one.
    """
    parts = ("require", "default_widths", "compile", "check", "load")
    if isinstance(target, type) or not all(callable(getattr(target, part, None)) for part in parts):
        raise TypeError(f"'target' must be a target such as NativeTarget(): got {target!r}")


def neuron_target() -> Target:
    """
    The target for the Neuron packages that this machine has, with its defaults.

    Raises:
        ValueError: It has none.
    """
    from .detect import probe

    found = probe()
    if found.kind == "none":
        raise ValueError(f"target 'neuron' needs the packages of AWS Neuron: got\n{found}")
    return target_named(f"neuron-{found.kind}")


def automatic_target() -> Target:
    """The target for what this machine has: a Neuron device, else a GPU, else a compiler, else nothing."""
    from .aoti import has_compiler
    from .cuda_runtime import CudaRuntime
    from .detect import probe

    if probe().has_device:
        return target_named("neuron")
    if CudaRuntime().lack() is None:
        return target_named("cuda")
    return target_named("cpu" if has_compiler() else "eager")
