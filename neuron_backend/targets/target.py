"""What compiles the programs of a decoder."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    from ..artifacts.fingerprint import Fitted
    from ..artifacts.manifest import Manifest
    from ..artifacts.packages import Package
    from ..static_decoder import StaticDecoder

NOT_SAVED = "the folder holds no programs with this chain and sampler: compile_decoder makes them"
"""Why a loaded decoder does not choose, if it was saved with another chain or with none."""


@runtime_checkable
class Target(Protocol):
    """
    A compiler and the machine that it compiles for.

    ``compile_decoder(target=...)`` takes one, or the name of one with its defaults. One may be a
    :class:`RunsStored` and a :class:`DrivesCores` besides.
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


@runtime_checkable
class DrivesCores(Protocol):
    """A target that may have the cores of one process hold a model together (``tp_degree``)."""

    drives_cores: ClassVar[bool]
    """Whether one process drives all of them, rather than each core having its own."""


def check_target(target: object) -> None:
    """
    Refuse what is no target.

    Raises:
        TypeError: It is none: something else, or the class of one.
    """
    if isinstance(target, type) or not isinstance(target, Target):
        raise TypeError(f"'target' must be a target such as NativeTarget(): got {target!r}")
