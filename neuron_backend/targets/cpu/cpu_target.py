"""Target for the CPU: programs compiled by AOTInductor."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar

import attrs
import torch
from torch import Tensor

from ....decoding.fork_safe_lock import fork_safe_lock
from ...artifacts import machine, trust
from ...artifacts.fingerprint import ModelFingerprint, program_fingerprint
from ...artifacts.manifest import Manifest
from ...artifacts.packages import Package, compiled_once
from ...kv_cache.buffers import CacheBuffers
from ...kv_cache.shapes import DEFAULT_WIDTHS, clip_widths
from ...large_pages import move_to_large_pages
from ...models.fused_projections import fuse_projections
from ...program_stages import compiling_names
from ...progress import stage
from ...quantization.quantized_matmul import arrange_for_kernels
from ...row_steps import RowStep
from ...step import DecoderStep, Step, TreeStep, tensors_of
from ..compiler_cache import private_compiler_cache
from ..target import NOT_SAVED, compile_again
from . import aoti, toolchain
from .kernel_library import KernelDtypes, Library, NoLibrary
from .program_loading import CpuProgram, load_program

if TYPE_CHECKING:
    from ...static_decoder import StaticDecoder

_compiling = fork_safe_lock()


@attrs.frozen
class CpuTarget:
    """
    One program per width, which serves every span; saved and loaded without a compiler.

    Raises:
        ValueError: What :mod:`~.toolchain` names is needed and missing.
    """

    name: ClassVar[str] = "cpu"
    copies_by_program: ClassVar[bool] = False

    def require(self) -> None:
        """Refuse a machine on which nothing can be compiled."""
        toolchain.require()

    def default_widths(self, max_length: int) -> tuple[int, ...]:
        """1, 5 and 128."""
        return clip_widths(DEFAULT_WIDTHS, max_length)

    def compile(self, decoder: "StaticDecoder") -> None:
        """Compile every width and compare with the stock model."""
        toolchain.require()
        # The environment that the compiler reads, and the functions of Inductor that are replaced, are the
        # process's.
        with _compiling, private_compiler_cache():
            self._compile(decoder)

    def _compile(self, decoder: "StaticDecoder") -> None:
        arrange_for_kernels(decoder.step.model)
        _lay_out_weights(decoder)
        packages = _compiled_by_ranks(decoder) if decoder.ranks is not None else _compiled(decoder)
        for package in packages.values():
            trust.record(package.content)
        with stage(decoder.progress, "loading the compiled programs"):
            self._run(decoder, packages, compiled=True)
        decoder.compare("the program compiled for the CPU")

    def check(self, manifest: Manifest) -> None:
        """Refuse another torch version, or a CPU that lacks instruction sets."""
        again = "compile_decoder(folder) compiles it again"
        if manifest.versions["torch"] != torch.__version__:
            raise ValueError(
                f"programs must be run by the torch that compiled them, {manifest.versions['torch']}: "
                f"got {torch.__version__}; {again}"
            )
        missing = sorted(set(manifest.instruction_sets) - set(machine.instruction_sets()))
        if manifest.cpu_family != machine.cpu_family() or missing:
            raise ValueError(
                "programs must be run on a processor like the one they were compiled on, "
                f"{manifest.cpu_family}: got {machine.cpu_family()} without "
                f"{', '.join(missing) or 'differences'}; {again}"
            )

    def load(self, decoder: "StaticDecoder", packages: Mapping[str, Package], trust_programs: bool) -> None:
        """Run saved programs that are trusted; compile again otherwise."""
        if not all(_file(step.kind, width) in packages for step, width in decoder.fused_steps()):
            decoder.leave_unfused(NOT_SAVED)
        # Programs of another chain are not run.
        used = [_package(packages, _file(kind, width)) for kind, _, width in _programs(decoder)]
        known = trust_programs or all(trust.is_recorded(package.content) for package in used)
        if known if decoder.ranks is None else decoder.ranks.all_agree(known):
            _lay_out_weights(decoder)
            self._run(decoder, packages, compiled=False)
        else:
            compile_again(self, decoder)

    def load_stored(
        self,
        decoder: "StaticDecoder",
        packages: Mapping[str, Package],
        model: ModelFingerprint,
        tensors: Mapping[str, Tensor],
    ) -> None:
        """Run saved programs over *tensors*, without building the model."""

        def programs(kind: str, widths: Sequence[int]) -> dict[int, CpuProgram]:
            cache = _cache(decoder, kind)
            return {
                width: load_program(
                    _package(packages, _file(kind, width)),
                    tensors,
                    cache,
                    _fingerprint(decoder, model, kind, width),
                )
                for width in widths
            }

        decoder.replace_programs(
            programs(DecoderStep.kind, decoder.shape.widths),
            programs(TreeStep.kind, decoder.tree_widths),
            target=self,
            packages=packages,
            compiled=False,
            row_programs=_for_rows(decoder, programs(RowStep.kind, decoder.row_widths)),
        )

    def _run(self, decoder: "StaticDecoder", packages: Mapping[str, Package], compiled: bool) -> None:
        model = ModelFingerprint.of(decoder.step)

        def program(step: Step, width: int, kind: str | None = None) -> CpuProgram:
            kind = step.kind if kind is None else kind
            fingerprint = _fingerprint(decoder, model, kind, width)
            package, tensors = packages[_file(kind, width)], tensors_of(step)
            return load_program(package, tensors, _cache(decoder, kind), fingerprint)

        decoder.replace_programs(
            {width: program(decoder.step, width) for width in decoder.shape.widths},
            {width: program(decoder.tree_step, width) for width in decoder.tree_widths},
            target=self,
            packages=packages,
            compiled=compiled,
            fused_programs={width: program(step, width) for step, width in decoder.fused_steps()},
            row_programs=_for_rows(
                decoder, {width: program(decoder.step, width, RowStep.kind) for width in decoder.row_widths}
            ),
        )
        # One program serves every span.
        decoder.warm_up(decoder.spans[:1])


def _compiled(decoder: "StaticDecoder") -> dict[str, Package]:
    """Programs by file name."""
    # Imported on demand: only compiling needs them.
    from .kernel_selection import tiled_dtypes
    from .program_compiler import ProgramCompiler

    model, dtypes = ModelFingerprint.of(decoder.step), KernelDtypes(decoder.step.model.dtype)
    kernels = cache(partial(_kernels, decoder))
    if dtypes.dtype in tiled_dtypes():
        # Timed before anything else runs, which would disturb the measurement.
        kernels()
    with ProgramCompiler.of(decoder.spans, dtypes, kernels) as compiler:
        begun = {
            _file(kind, width): compiler.compile(
                step, width, _cache(decoder, kind), _fingerprint(decoder, model, kind, width)
            )
            for kind, step, width in _staged(decoder)
        }
        with stage(decoder.progress, "compiling C++"):
            return {file: program() for file, program in begun.items()}


def _compiled_by_ranks(decoder: "StaticDecoder") -> dict[str, Package]:
    """Programs of a divided model by file name, each compiled by the first rank for all."""
    model = ModelFingerprint.of(decoder.step)
    # Measured only on the rank that compiles: ranks of one host would disturb each other.
    kernels = cache(partial(_kernels, decoder))

    def compiled(kind: str, step: Step, width: int) -> Package:
        fingerprint, over = _fingerprint(decoder, model, kind, width), _cache(decoder, kind)
        return aoti.compile_package(step, over, width, decoder.spans, fingerprint, kernels())

    return {
        _file(kind, width): compiled_once(decoder.ranks, partial(compiled, kind, step, width))
        for kind, step, width in _staged(decoder)
    }


def _programs(decoder: "StaticDecoder") -> list[tuple[str, Step, int]]:
    """Kind, step and width of each program."""
    return [(step.kind, step, width) for step, width in decoder.steps()] + [
        (RowStep.kind, decoder.step, width) for width in decoder.row_widths
    ]


def _cache(decoder: "StaticDecoder", kind: str) -> CacheBuffers:
    """What a program of that *kind* is compiled over: programs of one row are moved from row to row."""
    return decoder.cache.row(0) if kind == RowStep.kind else decoder.cache


def _for_rows(decoder: "StaticDecoder", programs: Mapping[int, CpuProgram]) -> dict[int, list[CpuProgram]]:
    """For each of the *programs* of one row one per row."""
    rows = [decoder.cache.row(row) for row in range(decoder.shape.batch_size)]
    return {width: [program.over(cache) for cache in rows] for width, program in programs.items()}


def _staged(decoder: "StaticDecoder") -> Iterator[tuple[str, Step, int]]:
    """Each of :func:`_programs`; what is done with it is a stage."""
    programs = _programs(decoder)
    names = compiling_names([(kind, width) for kind, _, width in programs])
    for number, (each, name) in enumerate(zip(programs, names, strict=True), 1):
        with stage(decoder.progress, name, number, len(programs)):
            yield each


def _kernels(decoder: "StaticDecoder") -> Library | NoLibrary:
    # Imported on demand: only compiling needs it.
    from .kernel_selection import select_kernels

    rows = [decoder.shape.batch_size * width for width in (*decoder.shape.widths, *decoder.tree_widths)]
    with stage(decoder.progress, "compiling and measuring kernels"):
        return select_kernels(decoder.step.model, decoder.step.model.dtype, rows)


def _lay_out_weights(decoder: "StaticDecoder") -> None:
    """Fuse projections, and move the weights that no other model has to large pages, in the model's order."""
    fused = fuse_projections(decoder.step.model)
    for step in (decoder.step, decoder.tree_step):
        step.fused = fused
    weights = [*decoder.step.parameters(), *decoder.step.buffers()]
    move_to_large_pages(
        weight for weight in weights if weight.untyped_storage().data_ptr() not in decoder.borrowed
    )


def _fingerprint(decoder: "StaticDecoder", model: ModelFingerprint, kind: str, width: int) -> str:
    # Determines the order in which torch's kernels pack weights.
    kernels = torch.backends.cpu.get_cpu_capability()
    return program_fingerprint(
        model, kind, decoder.shape, width, decoder.spans, _cache(decoder, kind), kernels
    )


def _file(kind: str, width: int) -> str:
    return f"{kind}_{width}.zip"


def _package(packages: Mapping[str, Package], name: str) -> Package:
    if name not in packages:
        raise ValueError(f"a saved decoder must have a program for each of its widths: got no {name}")
    return packages[name]
