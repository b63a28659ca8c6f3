"""Protocols of a target, which compiles and loads a decoder's programs."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from ..progress import stage

if TYPE_CHECKING:
    from ..artifacts.fingerprint import ModelFingerprint
    from ..artifacts.manifest import Manifest
    from ..artifacts.packages import Package
    from ..static_decoder import StaticDecoder

NOT_SAVED = "the folder holds no programs with this chain and sampler: compile_decoder makes them"
"""Why a loaded decoder does not sample on the device: it was saved with another chain or none."""


@runtime_checkable
class Target(Protocol):
    """
    A compiler and the machine that it compiles for.

    ``compile_decoder(target=...)`` takes one, or the name of one with its defaults. A target may also be
    a :class:`RunsStored`, a :class:`DrivesCores`, a :class:`StartsProcessGroup` and a
    :class:`TakesCompilerArguments`.
    """

    @property
    def name(self) -> str:
        """Name of the target, kept in a decoder's ``target`` and in a saved decoder's manifest."""
        ...

    def require(self) -> None:
        """
        Refuse a machine on which nothing can be compiled, before a model is loaded.

        Raises:
            ValueError: Something is missing; the message says what, and where to get it.
        """
        ...

    def default_widths(self, max_length: int) -> tuple[int, ...]:
        """Default widths of the forwards of a decoder with *max_length* positions."""
        ...

    def compile(self, decoder: "StaticDecoder") -> None:
        """
        Put compiled programs into an eager *decoder*, run each once, and compare with the stock model.

        ``decoder.steps()`` are the modules and their widths. Those of ``decoder.fused_steps()`` return
        sampled tokens before the logits; if a target leaves them out, sampling stays on the host,
        and ``decoder.explain()`` says so. A :class:`ServesRows` makes programs of one row for
        ``decoder.row_widths`` too, and if it ``copies_by_program`` all of ``decoder.row_steps()``.

        Raises:
            UnsupportedArchitecture: The logits differ.
        """
        ...

    def check(self, manifest: "Manifest") -> None:
        """
        Refuse programs that this machine cannot run, before anything is loaded.

        Raises:
            ValueError: A version or the hardware does not match.
        """
        ...

    def load(self, decoder: "StaticDecoder", packages: Mapping[str, "Package"], trust_programs: bool) -> None:
        """
        Put saved programs into an eager *decoder*, and run each once.

        If those of ``decoder.fused_steps()`` are not among them, sampling stays on the host
        (``decoder.leave_unfused``): a load does not compile programs that were not saved.

        Args:
            decoder: The decoder, with its weights.

            packages: File name to saved program.

            trust_programs: Run native code that this machine did not compile. Otherwise, such
                programs are compiled again.

        Raises:
            ValueError: They do not fit.
        """
        ...


@runtime_checkable
class RunsStored(Protocol):
    """A target whose saved programs take tensors by name, so that they run without building the model."""

    def load_stored(
        self,
        decoder: "StaticDecoder",
        packages: Mapping[str, "Package"],
        model: "ModelFingerprint",
        tensors: Mapping[str, Tensor],
    ) -> None:
        """
        Put trusted saved programs into a *decoder* that has none.

        Args:
            decoder: The decoder, with its cache. Its step is not built yet.

            packages: File name to saved program.

            model: Fingerprint of the model that the programs have to fit.

            tensors: Weights and buffers, by their names in the decoder's step.

        Raises:
            ValueError: They do not fit, or one is missing.
        """
        ...


@runtime_checkable
class DrivesCores(Protocol):
    """A target that can divide a model among the cores of one process (``tp_degree``)."""

    drives_cores: ClassVar[bool]
    """Whether one process drives all cores, rather than one process per core."""


@runtime_checkable
class StartsProcessGroup(Protocol):
    """A target whose device has a process group of its own, made before the device is used."""

    def start_process_group(self, timeout: timedelta) -> None:
        """Make the default process group; the processes were started by ``torchrun``."""


@runtime_checkable
class ServesRows(Protocol):
    """A target that can feed and copy single rows of the cache."""

    copies_by_program: ClassVar[bool]
    """
    Whether a copy of rows is a program, rather than an assignment. Programs of single rows, which such a
    target takes long to compile, are then made only where they are asked for.
    """


def serves_rows(target: Target) -> bool:
    """Whether *target* can feed and copy single rows."""
    return isinstance(target, ServesRows)


def copies_by_program(target: Target) -> bool:
    """Whether copies of rows are a program of *target*, if it makes any."""
    return isinstance(target, ServesRows) and target.copies_by_program


def serves_rows_unasked(target: Target) -> bool:
    """Whether *target* feeds and copies single rows where nothing else is asked for."""
    return serves_rows(target) and not copies_by_program(target)


@runtime_checkable
class LimitsWrites(Protocol):
    """A target that limits how many numbers one operation writes into the cache."""

    largest_write: ClassVar[int]
    """Keys, or values, of one layer that a forward may write: batch size x heads x width x head_dim."""


@runtime_checkable
class TakesCompilerArguments(Protocol):
    """A target whose compiler takes arguments."""

    def with_compiler_args(self, arguments: Sequence[str]) -> Target:
        """The same target with these arguments of its compiler, in place of its own."""
        ...


def check_target(target: object) -> None:
    """
    Refuse an object that is not a target.

    Raises:
        TypeError: It is something else, or a target's class.
    """
    if isinstance(target, type) or not isinstance(target, Target):
        raise TypeError(f"'target' must be a target such as NativeTarget(): got {target!r}")


def compile_again(target: Target, decoder: "StaticDecoder") -> None:
    """Compile the loaded *decoder*, whose saved programs are not trusted, and tell its progress why."""
    with stage(decoder.progress, "compiling again: the saved programs were compiled elsewhere") as notes:
        target.compile(decoder)
        notes.text = "a copy saved here loads without compiling"
