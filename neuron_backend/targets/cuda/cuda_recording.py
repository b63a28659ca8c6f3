"""Recording of a decoder's programs as CUDA graphs over shared memory."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from ...kv_cache.buffers import CacheBuffers
from ...lowering.export import without_known_warnings
from ...lowering.step_graphs import ProgramShape, program_shapes
from ...step import Step, program_name
from ..layered.equal_layers import EqualLayers
from ..layered.layer_graphs import NotLayered
from ..layered.layered_step import LayeredStep
from ..layered.step_tensors import input_values, state_values
from .cuda_parts import Compile, PlacedStep
from .cuda_program import CudaProgram, StagingBuffers
from .cuda_runtime import Recorder, Replay, Runtime
from .cuda_staging import TensorSpec, size_of, tensors_in
from .cuda_step import kinds_of_layers, lower_for_cuda

if TYPE_CHECKING:
    from ...static_decoder import StaticDecoder

_LOG = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class Recording:
    """A decoder's programs while they are recorded."""

    decoder: "StaticDecoder"
    compile_graph: Compile
    recorder: Recorder
    buffers: StagingBuffers
    cache: CacheBuffers

    _equal: dict[str, EqualLayers | None] = attrs.field(factory=dict, init=False)
    """The kinds of layers of each step and width so far, by the name of its programs."""

    @classmethod
    def of(
        cls,
        decoder: "StaticDecoder",
        device: torch.device,
        runtime: Runtime,
        compile_graph: Compile,
        shapes: Sequence[ProgramShape],
    ) -> "Recording":
        """Allocate the cache and the memory that programs of *shapes* share."""
        inputs = max(size_of(input_specs(decoder, shape)) for shape in shapes)
        outputs = max(size_of(output_specs(decoder, shape)) for shape in shapes)
        buffers = StagingBuffers.of(device, runtime, inputs, outputs)
        return cls(decoder, compile_graph, runtime.recorder(device), buffers, _empty(device, decoder.cache))

    def record(self, shape: ProgramShape) -> Replay:
        """Warm up and record one program, on padding."""
        decoder, buffers = self.decoder, self.buffers
        inputs, outputs = input_specs(decoder, shape), output_specs(decoder, shape)
        slots = decoder.cache.addresses(shape.span).to(buffers.device)
        step = PlacedStep.of(
            self._lowered(shape),
            {**input_values([*tensors_in(buffers.inputs.device, inputs), slots]), **state_values(self.cache)},
            tensors_in(buffers.outputs.device, outputs),
            buffers.device,
            lambda graph, part: self.compile_graph(graph, f"{shape.name}, {part}"),
        )
        for host_input, tensor in zip(
            tensors_in(buffers.inputs.host, inputs), _padding(decoder, shape), strict=True
        ):
            host_input.copy_(tensor)
        buffers.inputs.up(size_of(inputs))
        with without_known_warnings():
            replay = self.recorder.record(step)
        return RecordedStep(replay, step)

    def _lowered(self, shape: ProgramShape) -> LayeredStep:
        step, width, span, cache = shape.step, shape.width, shape.span, self.decoder.cache
        assert isinstance(step, Step)
        name = program_name(step, width)
        if name not in self._equal:
            self._equal[name] = kinds_of_layers(step, width, span, cache)
        try:
            return lower_for_cuda(step, width, span, cache, self._equal[name])
        except NotLayered as reason:
            _LOG.info("%s is compiled as a whole: %s", name, reason)
            self._equal[name] = None
            return lower_for_cuda(step, width, span, cache, None)

    def programs(self, replays: Mapping[str, Replay]) -> dict[str, CudaProgram]:
        """One program for each step and width, over all of its spans."""
        shapes: dict[str, list[ProgramShape]] = {}
        for shape in program_shapes(self.decoder, prompt_spans=True):
            shapes.setdefault(program_name(shape.step, shape.width), []).append(shape)
        reserved = self.cache.reserved
        return {
            name: CudaProgram(
                self.buffers,
                {reserved + shape.span: replays[shape.name] for shape in spans},
                input_specs(self.decoder, spans[0]),
                output_specs(self.decoder, spans[0]),
            )
            for name, spans in shapes.items()
        }


@attrs.frozen(eq=False)
class RecordedStep:
    """A recorded program, and the kernels, constants and memory that must outlive it."""

    replay: Replay
    step: PlacedStep

    def __call__(self) -> None:
        """Run it."""
        self.replay()


def input_specs(decoder: "StaticDecoder", shape: ProgramShape) -> list[TensorSpec]:
    """The step's inputs before slots and cache."""
    return [TensorSpec.of(tensor) for tensor in _padding(decoder, shape)]


def output_specs(decoder: "StaticDecoder", shape: ProgramShape) -> list[TensorSpec]:
    """The step's results: logits, or sampled tokens and logits."""
    of, step = decoder.shape, shape.step
    columns = 1 if step is not decoder.tree_step and shape.width > of.scored_width else shape.width
    rows = 1 if step is decoder.row_step else of.batch_size
    logits = TensorSpec((rows, columns, of.vocab_size), torch.float32)
    can_sample = decoder.fusion is not None and step is decoder.fusion.step
    return [TensorSpec((of.batch_size, columns), torch.int64), logits] if can_sample else [logits]


def _padding(decoder: "StaticDecoder", shape: ProgramShape) -> tuple[Tensor, ...]:
    """Padding for the step's inputs before slots and cache."""
    inputs = shape.step.padding(shape.width, decoder.cache, shape.span)
    return inputs[: -1 - len(decoder.cache.tensors)]


def _empty(device: torch.device, cache: CacheBuffers) -> CacheBuffers:
    return cache.map(lambda buffer: torch.zeros(buffer.shape, dtype=buffer.dtype, device=device))
