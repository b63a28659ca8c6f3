"""
One program traced by ``torch_neuronx.trace``, for where there is no NxD.

Each program that torch_neuronx traces has a cache of its own, so there is one alone, of the widest
width and all positions: narrower forwards are padded into it.

AWS Neuron SDK, `PyTorch NeuronX Tracing API for Inference`.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import torch
from torch import Tensor

from ..parallel.cores import Cores
from ..step import DecoderStep
from .functional_step import FunctionalStep, padding
from .traced_program import Run, Traced, to_device, to_host

if TYPE_CHECKING:
    from ..static_decoder import StaticDecoder


@attrs.frozen
class SingleTraceWay:
    """Compiles with ``torch_neuronx`` alone."""

    name: ClassVar[str] = "trace"
    file: ClassVar[str] = "trace.pt"

    compiler_args: str
    compiler_workdir: str | None
    strict: bool

    def step(self, decoder: "StaticDecoder") -> FunctionalStep:
        """What is traced: as many columns are scored as the widest forward that scores all of its own has."""
        scored = decoder.shape.scored_width
        return FunctionalStep(DecoderStep(decoder.step.model, scored, kept=scored), decoder.cache)

    def shapes(self, decoder: "StaticDecoder") -> list[tuple[int, int]]:
        """The width and the span of the program."""
        return [(decoder.shape.widths[-1], decoder.shape.max_length)]

    def compile(self, cores: Cores, top_ks: Sequence[int]) -> Traced:
        """Trace, compile, and put the weights on the device. *top_ks* would help with HLO; none is shown."""
        import torch_neuronx

        decoder = cores.part
        step = self.step(decoder)
        ((width, span),) = self.shapes(decoder)
        with torch.no_grad():
            program = torch_neuronx.trace(
                step,
                padding(decoder.cache, width, span),
                # The logits come first.
                input_output_aliases={state: index for index, state in enumerate(step.states.values(), 1)},
                compiler_args=self.compiler_args,
                compiler_workdir=self.compiler_workdir,
                inline_weights_to_neff=False,
            )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.file
            torch.jit.save(program, str(path))
            content = path.read_bytes()
        return Traced(_runs(decoder, program), content, weights=[])

    def load(self, cores: Cores, content: bytes, weights: list[str]) -> Mapping[int, Run]:
        """Load what :meth:`compile` stored, which has its weights with it."""
        # A ScriptModule with a program for Neuron is only known after this.
        import torch_neuronx  # noqa: F401

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.file
            path.write_bytes(content)
            program = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
        return _runs(cores.part, program)


def _runs(decoder: "StaticDecoder", program: Any) -> dict[int, Run]:
    import torch_neuronx

    # Else the weights, being apart from the program, would travel to the device with every call.
    torch_neuronx.move_trace_to_device(program, 0)
    padded = Padded(
        program,
        decoder.shape.widths[-1],
        decoder.shape.scored_width,
        decoder.cache.addresses(decoder.shape.max_length),
    )
    return dict.fromkeys(decoder.shape.widths, padded)


@attrs.frozen(eq=False)
class Padded:
    """A program of one width that serves every narrower one."""

    program: Any
    """int32 ids, cache_pos and slots to the logits of its last columns."""

    width: int
    scored_width: int
    slots: Tensor
    """The addresses that it was compiled to attend to."""

    def __call__(self, ids: Tensor, cache_pos: Tensor, slots: Tensor) -> Tensor:
        """Padding stands in front, so that the last columns are the ones that are scored."""
        given = ids.shape[1]
        front = self.width - given
        padded = torch.nn.functional.pad(ids, (front, 0), value=-1)
        logits = to_host(self.program(to_device(padded), to_device(cache_pos - front), to_device(self.slots)))
        return logits[:, -(given if given <= self.scored_width else 1) :]
