"""
One program traced by ``torch_neuronx.trace``, for where there is no NxD.

Each program that torch_neuronx traces has a cache of its own, so there is one alone, of the widest
width and all positions: narrower forwards are padded into it. If it chooses, it does so in every
forward, and of those that nobody asks for a choice nobody reads it.

AWS Neuron SDK, `PyTorch NeuronX Tracing API for Inference`.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import torch
from torch import Tensor

from ...lowering.step_graphs import ProgramShape
from ...on_device_sampling.fused_step import FusedStep
from ...step import DecoderStep
from ...tensor_parallel.cores import Cores
from .functional_step import GIVEN, FunctionalStep, lower_sampling, padding
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
        What is traced: as many columns are scored as the widest forward that scores all of its own has.

        Raises:
            OverflowError: A choice needs more than 32 bits.
        """
        fused, width = _fused(decoder), decoder.shape.widths[-1]
        if fused is None:
            return FunctionalStep(_scoring(decoder), decoder.cache)
        samplers = {width: lower_sampling(fused, width, decoder.shape)}
        return FunctionalStep(fused.step, decoder.cache, samplers, fused.num_given)

    def shapes(self, decoder: "StaticDecoder") -> list[ProgramShape]:
        """The program."""
        step = _fused(decoder) or _scoring(decoder)
        return [ProgramShape(step, decoder.shape.widths[-1], decoder.shape.max_length)]

    def compile(self, cores: Cores, step: FunctionalStep, top_ks: Sequence[int]) -> TracedDecoder:
        """
        Trace, compile, and put the weights on the device.

        Args:
            cores: One, of an eager decoder.

            step: Its :meth:`step`.

            top_ks: Would help with HLO; none is shown.
        """
        import torch_neuronx

        decoder = cores.part
        (shape,) = self.shapes(decoder)
        inputs = padding(shape, decoder.cache)
        neutral = {name: inputs[name] for name in GIVEN if name in inputs}
        # The choice comes first, if there is one, and the logits before the states.
        outputs = 1 if decoder.fusion is None else 2
        with torch.no_grad():
            program = torch_neuronx.trace(
                step,
                tuple(inputs.values()),
                input_output_aliases={
                    state: index for index, state in enumerate(step.states.values(), outputs)
                },
                compiler_args=self.compiler_args,
                compiler_workdir=self.compiler_workdir,
                inline_weights_to_neff=False,
            )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.file
            torch.jit.save(program, str(path))
            content = path.read_bytes()
        return TracedDecoder(_runs(decoder, program, neutral), content, weights=[], tensors=neutral)

    def load(
        self, cores: Cores, content: bytes, weights: list[str], tensors: Mapping[str, Tensor]
    ) -> TracedPrograms:
        """Load what :meth:`compile` stored, which has its weights with it."""
        # A ScriptModule with a program for Neuron is only known after this.
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
    return FusedStep(_scoring(decoder), fused.choice, decoder.shape, fused.kind)


def _runs(decoder: "StaticDecoder", program: Any, neutral: Mapping[str, Tensor]) -> TracedPrograms:
    import torch_neuronx

    # Else the weights, being apart from the program, would travel to the device with every call.
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
    """A program of one width that serves every narrower one."""

    program: Any
    """int32 ids, cache_pos, slots, and what a choice is given, to that and the logits of its last columns."""

    width: int
    scored_width: int
    slots: Tensor
    """The addresses that it was compiled to attend to."""

    neutral: tuple[Tensor, ...] = ()
    """What a choice is given that nobody wants."""

    def __call__(self, ids: Tensor, cache_pos: Tensor, slots: Tensor) -> Tensor:
        """Padding stands in front, so that the last columns are the ones that are scored."""
        given = ids.shape[1]
        logits = to_host(self._run(ids, cache_pos, self.neutral))
        return logits[:, -(given if given <= self.scored_width else 1) :]

    def sample(self, ids: Tensor, cache_pos: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        """The choice in each column, and the logits; what belongs to columns is padded as they are."""
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
