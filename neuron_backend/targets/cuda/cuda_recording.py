"""Recording of a decoder's programs as CUDA graphs over shared memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor
from torch.fx import GraphModule

from ...kv_cache.buffers import CacheBuffers
from ...lowering.export import without_known_warnings
from ...lowering.step_graphs import ProgramShape, program_shapes
from ...step import Step, program_name
from ..layered.equal_layers import EqualLayers
from ..layered.step_tensors import input_values, state_values
from .cuda_program import CudaProgram, StagingBuffers
from .cuda_run import StepRun
from .cuda_runtime import Recorder, Replay, Runtime
from .cuda_staging import TensorSpec, size_of, tensors_in
from .cuda_step import kinds_of_layers, lower_for_cuda

if TYPE_CHECKING:
    from ...static_decoder import StaticDecoder


@attrs.frozen(eq=False)
class Recording:
    """A decoder's programs while they are recorded."""

    decoder: "StaticDecoder"
    compile_graph: Callable[[GraphModule, str], Any]
    recorder: Recorder
    buffers: StagingBuffers
    cache: CacheBuffers

    kinds: dict[str, EqualLayers | None] = attrs.field(factory=dict)
    """The kinds of layers of each step and width that was recorded, by the name of its programs."""

    @classmethod
    def of(
        cls,
        decoder: "StaticDecoder",
        device: torch.device,
        runtime: Runtime,
        compile_graph: Callable[[GraphModule, str], Any],
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
        step, width, span = shape.step, shape.width, shape.span
        assert isinstance(step, Step)
        kind = program_name(step, width)
        if kind not in self.kinds:
            self.kinds[kind] = kinds_of_layers(step, width, span, decoder.cache)
        slots = decoder.cache.addresses(span).to(buffers.device)
        run = StepRun.of(
            lower_for_cuda(step, width, span, decoder.cache, self.kinds[kind]),
            self.kinds[kind],
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
            replay = self.recorder.record(run)
        return _KeepingAlive(replay, run)

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
class _KeepingAlive:
    """A recorded program, and the kernels, constants and memory that must outlive it."""

    replay: Replay
    run: StepRun

    def __call__(self) -> None:
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
