"""
Compilation of what NxD's ModelBuilder v2 has traced: each program is kept as soon as it is compiled.

``ModelBuilder.compile`` makes all programs or none: it runs neuronx-cc without a cache, and an error loses
what was compiled before. So its parts are called here, in its order (neuronx_distributed at fbac349,
trace/model_builder_v2.py, ``ModelBuilder.compile``; trace/functions.py).
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from ...artifacts.kept_programs import digest_of, keep, kept
from ...progress import SILENT, Notes, Progress, stage
from .detect import neuron_versions
from .layout_optimization import (
    LAYOUT,
    NEFF,
    WRAPPED,
    apply_layout,
    choice_in,
    compile_layout,
    compile_priority,
    mark_weights,
    transformer_in,
)
from .neuron_environment import COMPILER_ARGUMENTS


@attrs.frozen(eq=False)
class CompiledFiles:
    """What the compiler made of one program."""

    files: Mapping[str, bytes]
    """Files by name."""

    seconds: float
    """Time to compile it, or to find it where it was kept."""

    was_kept: bool
    """Whether it was compiled before."""


Report = Callable[[str, CompiledFiles | Exception], None]
"""Called with the name of a program, and its files or why there are none, as soon as that is known."""


@attrs.define
class ProgramCompiler:
    """Runs neuronx-cc on traces, on several at a time as ``ModelBuilder.compile`` does."""

    arguments: str
    """Arguments of neuronx-cc."""

    workdir: str | None = None
    """Folder for its logs and intermediate files. None: NxD's."""

    reuse: bool = True
    """Whether programs are kept, and kept ones are used."""

    report: Report | None = None

    progress: Progress = SILENT
    """Is told of each program, in the thread that compiles it."""

    _numbers: dict[str, int] = attrs.field(factory=dict, init=False)
    _failures: dict[str, Exception] = attrs.field(factory=dict, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    def compile(self, traces: Mapping[str, Any], priority: str | None = None) -> dict[str, CompiledFiles]:
        """
        Compile every program, and keep each, whatever becomes of the others.

        Args:
            traces: ``ModelBuilder.trace_artifacts_collection``. With *priority* their graphs are changed.

            priority: Name of the program that weights are laid out for; None: they stay as they are.

        Returns:
            The result of each, and of the program that changes the layout of weights, if they need one.

        Raises:
            RuntimeError: Some failed.
        """
        self._numbers, self._failures = {name: number for number, name in enumerate(traces, 1)}, {}
        with tempfile.TemporaryDirectory() as folder:
            found = {} if priority is None else self._lay_out(traces, priority, Path(folder))
            if not self._failures:
                found |= self._compile_each({name: traces[name] for name in traces if name not in found})
        if self._failures:
            listed = "; ".join(f"{name}: {error}" for name, error in self._failures.items())
            raise RuntimeError(
                f"neuronx-cc must compile all {len(traces)} programs: got {len(self._failures)} that failed"
                f"{self._fate_of_the_others(priority)}: {listed}"
            ) from next(iter(self._failures.values()))
        return found

    def _fate_of_the_others(self, priority: str | None) -> str:
        if not self._failures.keys().isdisjoint({priority, LAYOUT}):
            return ", and the others were not tried"
        return ", the others are kept" if self.reuse else ""

    def _lay_out(self, traces: Mapping[str, Any], priority: str, folder: Path) -> dict[str, CompiledFiles]:
        """Compile the program *priority*, and change the graphs of the others to its layout of weights."""
        first = traces[priority]
        mark_weights(first)
        make = partial(compile_priority, priority, first, self.arguments, self.workdir)
        made = self._tried(priority, partial(_serialized, first), make, layout="chosen")
        if made is None or WRAPPED not in made.files:
            return {} if made is None else {priority: made}
        chosen = choice_in(folder, made.files)
        wrapped = made.files[WRAPPED]
        make = partial(compile_layout, first, chosen, self.arguments, self.workdir)
        layout = self._tried(LAYOUT, lambda: wrapped, make, weights=dict(first.weight_name_to_idx))
        if layout is None:
            return {priority: made}
        for name in traces.keys() - {priority}:
            # The copy of rows has no weights, which NxD takes for an error.
            if traces[name].weight_name_to_idx:
                apply_layout(name, traces[name], first, chosen)
        return {priority: made, LAYOUT: layout}

    def _compile_each(self, traces: Mapping[str, Any]) -> dict[str, CompiledFiles]:
        with ThreadPoolExecutor() as executor:
            running = {
                name: executor.submit(
                    self._tried, name, partial(_serialized, trace), partial(self._neff, name, trace)
                )
                for name, trace in traces.items()
            }
            results = {name: future.result() for name, future in running.items()}
        return {name: result for name, result in results.items() if result is not None}

    def _neff(self, name: str, trace: Any) -> dict[str, bytes]:
        from neuronx_distributed.trace.functions import compile as compile_graph

        made = compile_graph(
            hlo_module=trace.hlo,
            metaneff=trace.metaneff,
            compiler_workdir=self.workdir,
            compiler_args=self.arguments,
            key=name,
        )
        return {NEFF: Path(made.neff_filepath).read_bytes()}

    def _tried(
        self, name: str, graph: Callable[[], bytes], make: Callable[[], dict[str, bytes]], **facts: object
    ) -> CompiledFiles | None:
        """The result of one program, reported; None if it failed."""
        result: CompiledFiles | Exception
        try:
            with self._stage(name) as notes:
                result = self._made(graph(), make, **facts)
                notes.text = "compiled before" if result.was_kept else ""
        except Exception as error:
            result = error
        with self._lock:
            if isinstance(result, Exception):
                self._failures[name] = result
            if self.report is not None:
                self.report(name, result)
        return None if isinstance(result, Exception) else result

    def _stage(self, name: str) -> AbstractContextManager[Notes]:
        if name == LAYOUT:
            return stage(self.progress, "compiling the layout of weights")
        return stage(self.progress, f"compiling {name}", self._numbers[name], len(self._numbers))

    def _made(self, graph: bytes, make: Callable[[], dict[str, bytes]], **facts: object) -> CompiledFiles:
        start = time.perf_counter()
        digest = self._digest(graph, facts) if self.reuse else ""
        files = kept(digest) if self.reuse else None
        was_kept = files is not None
        if files is None:
            files = make()
            if self.reuse:
                keep(digest, files)
        return CompiledFiles(files, time.perf_counter() - start, was_kept)

    def _digest(self, graph: bytes, facts: Mapping[str, object]) -> str:
        from torch_neuronx.utils.utils import get_platform_target

        return digest_of(
            graph,
            arguments=self.arguments,
            variable=os.environ.get(COMPILER_ARGUMENTS, ""),
            platform=get_platform_target(self.arguments),
            versions=neuron_versions(),
            **facts,
        )


def _serialized(trace: Any) -> bytes:
    # Maps in the message have no order of their own.
    graph: bytes = trace.hlo.SerializeToString(deterministic=True)
    return graph


def assemble(traces: Mapping[str, Any], compiled: Mapping[str, CompiledFiles], world_size: int) -> Any:
    """The ``NxDModel`` of programs that were traced and compiled."""
    from neuronx_distributed import NxDModel
    from neuronx_distributed.trace.model_builder_utils import CompilationArtifacts

    with tempfile.TemporaryDirectory() as folder:
        layout = compiled.get(LAYOUT)
        transformer = None if layout is None else transformer_in(Path(folder), layout.files)
        model = NxDModel(world_size=world_size, layout_transformer=transformer)
        for number, (name, trace) in enumerate(traces.items()):
            path = Path(folder) / f"{number}.neff"
            path.write_bytes(compiled[name].files[NEFF])
            model.add(key=name, trace_artifacts=trace, compilation_artifacts=CompilationArtifacts(str(path)))
    return model
