"""
Tracing with ``torch_neuronx.trace``, without NxD: one program.

Each program that torch_neuronx traces has its own cache, so there is only one, of the widest width and all
positions: narrower forwards are padded. If it samples, it does so in every forward, and the tokens
are ignored where they are not wanted.

AWS Neuron SDK, `PyTorch NeuronX Tracing API for Inference`.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import torch
from torch import Tensor

from ...lowering.step_graphs import ProgramShape
from ...on_device_sampling.fused_step import FusedStep
from ...progress import stage
from ...step import DecoderStep
from ...tensor_parallel.cores import Cores
from .functional_step import GIVEN, FunctionalStep, lower_sampling, padding
from .program_compiler import CompiledFiles, Report
from .traced_program import TracedDecoder, TracedPrograms, to_device, to_host

if TYPE_CHECKING:
    from ...static_decoder import StaticDecoder


@attrs.frozen
class SingleTraceWay:
    """Compiles with ``torch_neuronx`` alone."""

    name: ClassVar[str] = "trace"
    file: ClassVar[str] = "trace.pt"

    compiler_args: str
    compiler_workdir: str | None
    strict: bool

    def step(self, decoder: "StaticDecoder") -> FunctionalStep:
        """
        The module to trace, which scores the last ``scored_width`` columns.

        Raises:
            OverflowError: Sampling needs more than 32 bits.
        """
        fused, width = _fused(decoder), decoder.shape.widths[-1]
        if fused is None:
            return FunctionalStep(_scoring(decoder), decoder.cache)
        samplers = {width: lower_sampling(fused, width, decoder.shape)}
        return FunctionalStep(fused.step, decoder.cache, samplers, fused.num_sampling_inputs)

    def shapes(self, decoder: "StaticDecoder") -> list[ProgramShape]:
        """Shape of the program."""
        step = _fused(decoder) or _scoring(decoder)
        return [ProgramShape(step, decoder.shape.widths[-1], decoder.shape.max_length)]

    def compile(self, cores: Cores, step: FunctionalStep, top_ks: Sequence[int]) -> TracedDecoder:
        """
        Trace, compile, and put the weights on the device.

        Args:
            cores: The single core of an eager decoder.

            step: Its :meth:`step`.

            top_ks: Not used, since there is no HLO to lint.
        """
        decoder = cores.part
        (shape,) = self.shapes(decoder)
        with stage(decoder.progress, f"tracing and compiling {shape.name}"):
            program, neutral = self._traced(decoder, step, self.compiler_workdir, cpu_backend=False)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.file
            torch.jit.save(program, str(path))
            content = path.read_bytes()
        return TracedDecoder(_runs(decoder, program, neutral), content, weights=[], tensors=neutral)

    def compile_only(self, cores: Cores, step: FunctionalStep, top_ks: Sequence[int], report: Report) -> None:
        """
        Trace and compile the program without a device, and load nothing; arguments as of :meth:`compile`.

        Raises:
            RuntimeError: The compiler failed.
        """
        (shape,) = self.shapes(cores.part)
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as temporary:
            folder = self.compiler_workdir or temporary
            try:
                with stage(cores.part.progress, f"tracing and compiling {shape.name}"):
                    self._traced(cores.part, step, folder, cpu_backend=True)
            except Exception as error:
                report(shape.name, error)
                raise RuntimeError(f"neuronx-cc must compile {shape.name}: got {error}") from error
            neffs = {path.name: path.read_bytes() for path in Path(folder).rglob("*.neff")}
        report(shape.name, CompiledFiles(neffs, time.perf_counter() - start, was_kept=False))

    def _traced(
        self, decoder: "StaticDecoder", step: FunctionalStep, workdir: str | None, cpu_backend: bool
    ) -> tuple[Any, dict[str, Tensor]]:
        """The compiled program, and sampling inputs to ignore."""
        import torch_neuronx

        (shape,) = self.shapes(decoder)
        inputs = padding(shape, decoder.cache)
        # Outputs are the sampled tokens, if any, the logits, and the states.
        outputs = 1 if decoder.fusion is None else 2
        with torch.no_grad():
            program = torch_neuronx.trace(
                step,
                tuple(inputs.values()),
                input_output_aliases={
                    state: index for index, state in enumerate(step.states.values(), outputs)
                },
                compiler_workdir=workdir,
                compiler_args=self.compiler_args,
                inline_weights_to_neff=False,
                **({"cpu_backend": True} if cpu_backend else {}),
            )
        return program, {name: inputs[name] for name in GIVEN if name in inputs}

    def load(
        self, cores: Cores, content: bytes, weights: list[str], tensors: Mapping[str, Tensor]
    ) -> TracedPrograms:
        """Load the program that :meth:`compile` saved, which includes its weights."""
        # Registers the class of a ScriptModule with a Neuron program.
        import torch_neuronx  # noqa: F401

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.file
            path.write_bytes(content)
            program = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
        return _runs(cores.part, program, tensors)


def _scoring(decoder: "StaticDecoder") -> DecoderStep:
    scored = decoder.shape.scored_width
    return DecoderStep(decoder.step.model, scored, kept=scored)


def _fused(decoder: "StaticDecoder") -> FusedStep | None:
    if decoder.fusion is None:
        return None
    fused = decoder.fusion.step
    return FusedStep(_scoring(decoder), fused.sampling, decoder.shape, fused.kind)


def _runs(decoder: "StaticDecoder", program: Any, neutral: Mapping[str, Tensor]) -> TracedPrograms:
    import torch_neuronx

    # Otherwise the weights, which are not inlined, would be copied to the device at every call.
    with stage(decoder.progress, "putting the weights on the device"):
        torch_neuronx.move_trace_to_device(program, 0)
    padded = Padded(
        program,
        decoder.shape.widths[-1],
        decoder.shape.scored_width,
        decoder.cache.addresses(decoder.shape.max_length),
        tuple(neutral[name] for name in GIVEN if name in neutral),
    )
    sampling = () if decoder.fusion is None else decoder.fusion.widths
    return TracedPrograms(
        dict.fromkeys(decoder.shape.widths, padded), sampling=dict.fromkeys(sampling, padded.sample)
    )


@attrs.frozen(eq=False)
class Padded:
    """A program of one width that serves every narrower width by padding."""

    program: Any
    """int32 ids, cache_pos, slots and sampling inputs to tokens, if any, and logits of the last columns."""

    width: int
    scored_width: int
    slots: Tensor
    """The addresses that it was compiled to attend to."""

    neutral: tuple[Tensor, ...] = ()
    """Sampling inputs for forwards whose tokens are ignored."""

    def __call__(self, ids: Tensor, cache_pos: Tensor, slots: Tensor) -> Tensor:
        """Logits of a forward. Padding precedes the tokens, so that the last columns are scored."""
        given = ids.shape[1]
        logits = to_host(self._run(ids, cache_pos, self.neutral))
        return logits[:, -(given if given <= self.scored_width else 1) :]

    def sample(self, ids: Tensor, cache_pos: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        """Sampled tokens and logits of each column; inputs per column are padded like the tokens."""
        given = [
            torch.cat([neutral[:, : neutral.shape[1] - one.shape[1]], one], dim=1)
            if one.shape != neutral.shape
            else one
            for neutral, one in zip(self.neutral, map(to_device, others[:-1]), strict=True)
        ]
        chosen, logits = self._run(ids, cache_pos, given)
        return chosen[:, -ids.shape[1] :], logits[:, -ids.shape[1] :]

    def _run(self, ids: Tensor, cache_pos: Tensor, given: Sequence[Tensor]) -> Any:
        front = self.width - ids.shape[1]
        padded = torch.nn.functional.pad(ids, (front, 0), value=-1)
        return self.program(to_device(padded), to_device(cache_pos - front), to_device(self.slots), *given)
