"""
Graphs lowered for a GPU, on a fake GPU that has shapes only.

Fake tensors may be on devices that do not exist. An operation on tensors of the GPU and of the host
is an error, as on a real GPU, and so is a shape that depends on data.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from transformers import PreTrainedModel

from decodekit.decoding import Greedy, Sample
from decodekit.neuron_backend import StaticDecoder
from decodekit.neuron_backend.kv_cache.buffers import CacheBuffers
from decodekit.neuron_backend.lowering.step_graphs import ProgramShape, program_shapes
from decodekit.neuron_backend.models.early_exit import first_layers
from decodekit.neuron_backend.models.fused_projections import fuse_projections
from decodekit.neuron_backend.step import Step
from decodekit.neuron_backend.targets import device_tensors as placement
from decodekit.neuron_backend.targets.cuda.cuda_parts import PlacedStep
from decodekit.neuron_backend.targets.cuda.cuda_recording import input_specs, output_specs
from decodekit.neuron_backend.targets.cuda.cuda_staging import TensorSpec
from decodekit.neuron_backend.targets.cuda.cuda_step import (
    kinds_of_layers,
    lower_for_cuda,
    write_into_buffers,
)
from decodekit.neuron_backend.targets.layered.graph_parts import around_layers
from decodekit.neuron_backend.targets.layered.layered_step import LayeredStep
from decodekit.neuron_backend.targets.layered.step_tensors import input_values, state_values
from decodekit.processors import MinP, RepetitionPenalty, Temperature, TopK, TopP

Models = Callable[..., PreTrainedModel]

GPU = torch.device("cuda:0")
SHAPE: dict[str, Any] = {
    "batch_size": 2,
    "max_length": 48,
    "widths": (1, 6),
    "scored_width": 1,
    "tree_widths": (4,),
    "spans": (48,),
}
CHAINS = {
    "sampled after a chain": (
        RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.9) | MinP(0.02),
        Sample(seed=1),
    ),
    "a nucleus of all": (TopP(torch.tensor([0.9, 0.8])), Sample(seed=1)),
    "greedy": (RepetitionPenalty(1.2), Greedy()),
}

aten: Any = torch.ops.aten


@attrs.frozen(eq=False)
class Program:
    """One of a decoder's programs, and its inputs."""

    layered: LayeredStep
    inputs: list[TensorSpec]
    cache: CacheBuffers
    results: list[TensorSpec]

    @classmethod
    def all_of(cls, decoder: StaticDecoder) -> "list[Program]":
        """All programs, as the target lowers them."""
        return [cls.of(decoder, shape) for shape in program_shapes(decoder)]

    @classmethod
    def of(cls, decoder: StaticDecoder, shape: ProgramShape) -> "Program":
        """One program of *decoder*."""
        assert isinstance(shape.step, Step)
        step, width, span, cache = shape.step, shape.width, shape.span, decoder.cache
        equal = kinds_of_layers(step, width, span, cache)
        return cls(
            lower_for_cuda(step, width, span, cache, equal),
            [*input_specs(decoder, shape), TensorSpec.of(cache.addresses(span))],
            cache,
            output_specs(decoder, shape),
        )

    def on_gpu(self) -> PlacedStep:
        """It over tensors of the GPU, uncompiled."""
        inputs = [torch.empty(spec.shape, dtype=spec.dtype, device=GPU) for spec in self.inputs]
        results = [torch.empty(spec.shape, dtype=spec.dtype, device=GPU) for spec in self.results]
        cache = self.cache.map(lambda buffer: torch.empty_like(buffer, device=GPU))
        placed = {**input_values(inputs), **state_values(cache)}
        return PlacedStep.of(self.layered, placed, results, GPU, lambda graph, part: graph)


@contextmanager
def a_gpu() -> Iterator[None]:
    """A fake GPU, whose copies of weights are dropped afterwards."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        placement._COPIES.pop(GPU, None)


def run_on_gpu(programs: list[Program]) -> None:
    """Move each program to the GPU and run it."""
    with a_gpu(), torch.no_grad():
        for program in programs:
            program.on_gpu()()


@pytest.mark.mostly_slow(every=5)
@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral", "bloom", "deepseek_v3"])
def test_no_tensor_of_the_host_is_in_a_step(name: str, tiny_model: Models) -> None:
    """Forwards that score all columns or one, and trees."""
    decoder = StaticDecoder(tiny_model(name), **SHAPE)
    programs = Program.all_of(decoder)
    run_on_gpu(programs)

    assert 3 == len(programs)
    assert {"cpu"} == {tensor.device.type for tensor in decoder.step.model.state_dict().values()}


@pytest.mark.mostly_slow(every=3)
@pytest.mark.parametrize("weights", ["int8", "int4", "float8"])
def test_nor_in_weights_of_few_bits(weights: str, tiny_model: Models) -> None:
    """For few rows and for many."""
    model, few = first_layers(tiny_model("llama"), 1), {"max_length": 16, "widths": (1, 12)}
    run_on_gpu(Program.all_of(StaticDecoder(model, weights=weights, dtype="bfloat16", **few)))


@pytest.mark.parametrize("chain", CHAINS)
def test_nor_in_sampling(chain: str, tiny_model: Models) -> None:
    """With every processor that can be part of a forward."""
    model = first_layers(tiny_model("llama"), 1)
    decoder = StaticDecoder(model, batch_size=2, max_length=16, widths=(3,))
    decoder.fuse(*CHAINS[chain])
    assert decoder.fusion is not None
    (shape,) = [shape for shape in program_shapes(decoder) if shape.step is decoder.fusion.step]
    run_on_gpu([Program.of(decoder, shape)])


def test_programs_share_their_weights(tiny_model: Models) -> None:
    """One copy on the GPU, whatever the number of widths."""
    decoder = StaticDecoder(tiny_model("llama"), **SHAPE)
    programs = Program.all_of(decoder)[:2]
    with a_gpu():
        first, second = (program.on_gpu() for program in programs)
        weights = first.tensors.keys() & second.tensors.keys() & dict(decoder.step.named_parameters()).keys()

        assert len(weights) > 15
        assert all(first.tensors[name] is second.tensors[name] for name in weights)


def test_a_tensor_of_the_host_would_be_found(tiny_model: Models) -> None:
    """As the tests above assume."""
    decoder = StaticDecoder(tiny_model("llama"), **SHAPE)
    program = Program.of(decoder, program_shapes(decoder)[0])
    with a_gpu(), torch.no_grad():
        run = program.on_gpu()
        for node in run.before.graph.find_nodes(op="call_function", target=aten.arange.default):
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
        run.before.recompile()
        with pytest.raises(RuntimeError, match="same device"):
            run()


@pytest.fixture(scope="module")
def layered(tiny_model: Models) -> LayeredStep:
    """The graphs of one column, with fused projections."""
    decoder = StaticDecoder(tiny_model("llama"), **SHAPE)
    decoder.step.fused = fuse_projections(decoder.step.model)
    return Program.of(decoder, program_shapes(decoder)[0]).layered


class TestGraphs:
    """Structure of the lowered graphs."""

    def count(self, graph: GraphModule, target: Any) -> int:
        """Number of calls of an operation."""
        return len(graph.graph.find_nodes(op="call_function", target=target))

    def test_are_one_for_equal_layers(self, layered: LayeredStep) -> None:
        """The model has two."""
        assert [0] == list(layered.graphs.layers)

    def test_leave_attention_whole(self, layered: LayeredStep) -> None:
        """One call, for a GPU kernel; keys are not repeated for the heads that share them."""
        graph = layered.graphs.layers[0].module.graph
        (call,) = graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default)

        assert 2 == call.args[1].meta["val"].shape[1]
        expanded = graph.find_nodes(op="call_function", target=aten.expand.default)
        assert [] == [node for node in expanded if node.args[0].meta["val"].dim() == 5]

    def test_multiply_fused_projections_once(self, layered: LayeredStep) -> None:
        """Queries, keys and values; output; gate and up; down. And the head."""
        main, layer = layered.graphs.modules

        assert [1, 4] == [self.count(graph, aten.linear.default) for graph in (main, layer)]

    def test_write_the_cache_in_place(self, layered: LayeredStep) -> None:
        """Marks; a layer's keys and values. Through a view, compilers would copy all of it."""
        writes = [
            graph.graph.find_nodes(op="call_function", target=aten.index_put_.default)
            for graph in layered.graphs.modules
        ]

        assert [1, 2] == list(map(len, writes))
        assert {"placeholder"} == {write.args[0].op for one in writes for write in one}

    def test_write_results_into_buffers(self, layered: LayeredStep) -> None:
        """Which come first; nothing is returned."""
        after = around_layers(layered.graphs).after.module
        inputs = len(after.graph.find_nodes(op="placeholder"))
        write_into_buffers(after)

        assert 1 == self.count(after, aten.copy_.default)
        assert inputs + 1 == len(after.graph.find_nodes(op="placeholder"))
        assert "buffer_0" == next(iter(after.graph.nodes)).name
        (output,) = after.graph.find_nodes(op="output")
        assert not list(output.all_input_nodes)
