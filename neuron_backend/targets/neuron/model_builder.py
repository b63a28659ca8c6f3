"""
Tracing with NxD's ModelBuilder v2: one program for each width and span, over one cache.

AWS Neuron SDK, `ModelBuilderV2 API Reference`; neuronx_distributed/trace/model_builder_v2.py and
trace/nxd_model/nxd_model.py: one list of states initialises every program, and a call is routed to the
program that was traced with inputs of the same names and shapes. All programs have the module's
signature. Inputs with default None may be left out (trace/functions.py), and each program returns what
it returned when traced. So programs that sample, and those of trees and single rows, exist beside the plain
ones at no cost to these.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from torch import Tensor

from ...lowering.step_graphs import ProgramShape, program_shapes, program_spans
from ...progress import stage
from ...row_steps import CopyStep, RowStep
from ...step import DecoderStep, TreeStep, program_name
from ...tensor_parallel.cores import CORES, Cores
from ...tensor_parallel.parallel_layers import override_all_reduce
from .functional_step import MODEL, SAMPLERS, FunctionalStep, ReassigningStep, lower_sampling, named, padding
from .program_compiler import CompiledFiles, ProgramCompiler, Report, assemble
from .traced_program import TracedDecoder, TracedPrograms, lint_proto, refuse, to_device, to_host

if TYPE_CHECKING:
    from ...static_decoder import StaticDecoder


@attrs.frozen
class ModelBuilderWay:
    """Compiles with ``neuronx_distributed``."""

    name: ClassVar[str] = "nxd"
    file: ClassVar[str] = "nxd_model.pt"

    compiler_args: str
    compiler_workdir: str | None
    strict: bool
    keep_programs: bool = True
    optimize_weight_layout: bool = False

    def step(self, decoder: "StaticDecoder") -> ReassigningStep:
        """
        The module to trace.

        Raises:
            OverflowError: Sampling needs more than 32 bits.
        """
        fusion = decoder.fusion
        if fusion is None:
            return ReassigningStep(decoder.step, decoder.cache)
        samplers = {width: lower_sampling(fusion.step, width, decoder.shape) for width in fusion.widths}
        return ReassigningStep(decoder.step, decoder.cache, samplers, fusion.step.num_sampling_inputs)

    def shapes(self, decoder: "StaticDecoder") -> list[ProgramShape]:
        """
        Shapes of all programs.

        If a sampler has no further inputs, such as greedy sampling of raw logits, a plain program would have
        the same inputs, and NxD could not route between the two: the sampling one then serves both.
        """
        shapes, fusion = program_shapes(decoder), decoder.fusion
        if fusion is None or fusion.step.num_sampling_inputs:
            return shapes
        both = [(decoder.step, width) for width in fusion.widths]
        return [shape for shape in shapes if (shape.step, shape.width) not in both]

    def compile(self, cores: Cores, step: FunctionalStep, top_ks: Sequence[int]) -> TracedDecoder:
        """
        Trace every shape, compile all of them, and load them over one cache.

        Args:
            cores: Cores of an eager decoder.

            step: The :meth:`step` of their part.

            top_ks: Number of top-k calls in the graph of each of :meth:`shapes`.

        Raises:
            UnsupportedArchitecture: In strict mode, the HLO breaks a rule of neuronx-cc.
        """
        decoder = cores.part
        # Before tracing moves them.
        known, states = cores.weights(step.weights, MODEL), set(step.states)
        with on_cores(cores.degree):
            builder, compiled = self.programs(decoder, step, top_ks)
            traces = builder.trace_artifacts_collection
            model = assemble(traces, compiled, builder.world_size)
        # NxD spells attributes "a->b", and the keys of weights "a.b" (trace/hlo_utils.py at fbac349).
        names = (name.replace("->", ".") for trace in traces.values() for name in trace.weight_name_to_idx)
        used = dict.fromkeys(names)
        # States live on the device only, but some releases list them among the weights.
        weights = [name for name in used if name not in states]
        content = _saved(model)
        with stage(decoder.progress, "putting the weights on the device"):
            _start(model, known, weights)
        # The constants are the same on every core.
        constants = {name: known[0][name] for name in weights if name.startswith(f"{SAMPLERS}.")}
        return TracedDecoder(_runs(decoder, model), content, weights, constants)

    def compile_only(self, cores: Cores, step: FunctionalStep, top_ks: Sequence[int], report: Report) -> None:
        """
        Trace and compile every shape, and load none; arguments as of :meth:`compile` and :meth:`programs`.

        Raises:
            RuntimeError: The compiler failed on a program.
        """
        with on_cores(cores.degree):
            self.programs(cores.part, step, top_ks, report)

    def programs(
        self,
        decoder: "StaticDecoder",
        step: FunctionalStep,
        top_ks: Sequence[int],
        report: Report | None = None,
    ) -> tuple[Any, dict[str, CompiledFiles]]:
        """
        Trace and compile every shape, inside of :func:`on_cores`.

        Args:
            decoder: The part of core 0.

            step: Its :meth:`step`.

            top_ks: Number of top-k calls in the graph of each of :meth:`shapes`.

            report: Called as each program is compiled, or fails.

        Returns:
            NxD's builder with the traces, and what the compiler made of them.

        Raises:
            UnsupportedArchitecture: In strict mode, the HLO breaks a rule of neuronx-cc.

            RuntimeError: The compiler failed on a program.
        """
        from neuronx_distributed import ModelBuilder

        # The constructor looks up the number of cores.
        builder = ModelBuilder(step)
        shapes = self.shapes(decoder)
        for number, (shape, top_k) in enumerate(zip(shapes, top_ks, strict=True), 1):
            with stage(decoder.progress, f"tracing {shape.name}", number, len(shapes)):
                builder.trace(kwargs=padding(shape, decoder.cache), tag=shape.name)
            artifacts = builder.trace_artifacts_collection[shape.name]
            if self.strict:
                findings = lint_proto(artifacts.hlo.SerializeToString(), top_k)
                refuse(findings, type(decoder.step.model).__name__, f"the HLO of {shape.name}")
        compiler = ProgramCompiler(
            self.compiler_args, self.compiler_workdir, self.keep_programs, report, decoder.progress
        )
        priority = _most_used(shapes) if self.optimize_weight_layout else None
        return builder, compiler.compile(builder.trace_artifacts_collection, priority)

    def load(
        self, cores: Cores, content: bytes, weights: list[str], tensors: Mapping[str, Tensor]
    ) -> TracedPrograms:
        """
        Load the programs that :meth:`compile` saved, over these weights, their constants and an empty cache.

        Raises:
            ValueError: This release of neuronx_distributed cannot load them.
        """
        from neuronx_distributed import NxDModel

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.file
            path.write_bytes(content)
            model = NxDModel.load(str(path))
        # NxDModel.load returns a bare ScriptModule if it cannot restore its own class.
        if not isinstance(model, NxDModel):
            raise ValueError(
                "programs must be loaded by the neuronx_distributed that saved them: "
                f"got a {type(model).__name__}; compile_decoder(folder) compiles them again"
            )
        first = ReassigningStep(cores.part.step, cores.part.cache).weights
        with stage(cores.part.progress, "putting the weights on the device"):
            _start(model, cores.weights({**first, **tensors}, MODEL), weights)
        return _runs(cores.part, model)


@contextmanager
def on_cores(degree: int) -> Iterator[None]:
    """
    Trace and compile for *degree* cores while the body runs.

    As in AWS Neuron SDK, `ModelBuilderV2 API Reference`, usage examples:
    neuronx_distributed/trace/parallel_context.py traces for the first of the cores, and the sum of
    parallel_layers/mappings.py becomes an all-reduce among them.

    Raises:
        ValueError: This neuronx_distributed cannot.
    """
    if degree == 1:
        yield
        return
    try:
        from neuronx_distributed import NxDParallelState
        from neuronx_distributed.parallel_layers.mappings import reduce_from_tensor_model_parallel_region
    except ImportError as error:
        raise ValueError(
            f"tp_degree {degree} needs a neuronx-distributed with NxDParallelState, from "
            f"https://pip.repos.neuron.amazonaws.com: got {error}"
        ) from error
    with (
        NxDParallelState(world_size=degree, tensor_model_parallel_size=degree),
        override_all_reduce(CORES, reduce_from_tensor_model_parallel_region),
    ):
        yield


def _most_used(shapes: Sequence[ProgramShape]) -> str:
    """The program for the fewest tokens over all positions, one that samples if there is one."""
    others = (TreeStep.kind, RowStep.kind, CopyStep.kind)
    forwards = [shape for shape in shapes if shape.step.kind not in others]
    width = min(shape.width for shape in forwards)
    return [shape.name for shape in forwards if shape.width == width][-1]


def _saved(model: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ModelBuilderWay.file
        model.save(str(path))
        return path.read_bytes()


def _start(model: Any, known: Sequence[Mapping[str, Tensor]], weights: list[str]) -> None:
    missing = [name for name in weights if name not in known[0]]
    if missing:
        raise ValueError(f"the model must have every weight that the programs use: got none named {missing}")
    model.set_weights([{name: own[name] for name in weights} for own in known])
    model.to_neuron()


def _runs(decoder: "StaticDecoder", model: Any) -> TracedPrograms:
    # By kind, width and number of slots, the addresses of the shortest program that holds them.
    steps = (*decoder.steps(), *decoder.row_steps())
    attended = {
        (step.kind, width, len(decoder.cache.addresses(span))): to_device(
            decoder.cache.addresses(
                next(size for size in program_spans(decoder, step, width) if size >= span)
            )
        )
        for step, width in steps
        for span in decoder.spans
    }

    def given(kind: str, *inputs: Tensor) -> dict[str, Tensor]:
        *others, slots = inputs
        width = CopyStep.width if kind == CopyStep.kind else inputs[0].shape[1]
        return named(kind, *others, attended[kind, width, len(slots)])

    def run(kind: str, *inputs: Tensor) -> Tensor:
        return to_host(model(**given(kind, *inputs)))

    def sample(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        # Inputs and outputs by rank, so that the logits stay on the device until they are read.
        ranked = {
            name: [tensor] * model.local_ranks_size
            for name, tensor in given(DecoderStep.kind, *inputs).items()
        }
        chosen, logits = model(**ranked, forward_mode="ranked")
        return chosen[0].cpu(), logits[0]

    sampling = () if decoder.fusion is None else decoder.fusion.widths
    return TracedPrograms(
        dict.fromkeys(decoder.shape.widths, partial(run, DecoderStep.kind)),
        dict.fromkeys(decoder.tree_widths, partial(run, TreeStep.kind)),
        dict.fromkeys(sampling, sample),
        {program_name(step, width): partial(run, step.kind) for step, width in decoder.row_steps()},
    )
