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
from decodekit.neuron_backend.lowering.step_graphs import ProgramShape, program_shapes
from decodekit.neuron_backend.models.early_exit import first_layers
from decodekit.neuron_backend.models.fused_projections import fuse_projections
from decodekit.neuron_backend.targets import device_tensors as placement
from decodekit.neuron_backend.targets.cuda.cuda_recording import input_specs, output_specs
from decodekit.neuron_backend.targets.cuda.cuda_staging import TensorSpec
from decodekit.neuron_backend.targets.cuda.cuda_step import lower_for_cuda
from decodekit.neuron_backend.targets.device_tensors import place_graph
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

    graph: GraphModule
    places: list[TensorSpec]

    @classmethod
    def all_of(cls, decoder: StaticDecoder) -> "list[Program]":
        """All programs, as the target lowers them."""
        return [cls.of(decoder, shape) for shape in program_shapes(decoder)]

    @classmethod
    def of(cls, decoder: StaticDecoder, shape: ProgramShape) -> "Program":
        """A decoder with one program."""
        made = output_specs(decoder, shape)
        there = [decoder.cache.addresses(shape.span), *decoder.cache.tensors]
        return cls(
            lower_for_cuda(shape.step, shape.width, shape.span, decoder.cache, made),
            [*made, *input_specs(decoder, shape), *map(TensorSpec.of, there)],
        )

    def run(self) -> None:
        """Run it on tensors of the GPU only."""
        with torch.no_grad():
            self.graph(*(torch.empty(place.shape, dtype=place.dtype, device=GPU) for place in self.places))


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
    with a_gpu():
        for program in programs:
            place_graph(GPU, program.graph)
            program.run()


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


def test_a_tensor_of_the_host_would_be_found(tiny_model: Models) -> None:
    """As the tests above assume."""
    decoder = StaticDecoder(tiny_model("llama"), **SHAPE)
    program = Program.of(decoder, program_shapes(decoder)[0])
    with a_gpu():
        place_graph(GPU, program.graph)
        for node in program.graph.graph.find_nodes(op="call_function", target=aten.arange.default):
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
        program.graph.recompile()
        with pytest.raises(RuntimeError, match="same device"):
            program.run()


@pytest.fixture(scope="module")
def graph(tiny_model: Models) -> GraphModule:
    """The graph of one column, with fused projections."""
    decoder = StaticDecoder(tiny_model("llama"), **SHAPE)
    decoder.step.fused = fuse_projections(decoder.step.model)
    return Program.of(decoder, program_shapes(decoder)[0]).graph


class TestGraph:
    """Structure of the lowered graph."""

    def count(self, graph: GraphModule, target: Any) -> int:
        """Number of calls of an operation."""
        return len(graph.graph.find_nodes(op="call_function", target=target))

    def test_leaves_attention_whole(self, graph: GraphModule) -> None:
        """One call per layer, for a GPU kernel; keys are not repeated for the heads that share them."""
        calls = graph.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default)

        assert [2, 2] == [call.args[1].meta["val"].shape[1] for call in calls]
        expanded = graph.graph.find_nodes(op="call_function", target=aten.expand.default)
        assert [] == [node for node in expanded if node.args[0].meta["val"].dim() == 5]

    def test_multiplies_fused_projections_once(self, graph: GraphModule) -> None:
        """In two layers: queries, keys and values; output; gate and up; down. And the head."""
        assert 4 * 2 + 1 == self.count(graph, aten.linear.default)

    def test_writes_the_cache_in_place(self, graph: GraphModule) -> None:
        """Keys and values of two layers, marks, and the logits into their buffer; it returns nothing."""
        assert (5, 1) == (
            self.count(graph, aten.index_put_.default),
            self.count(graph, aten.copy_.default),
        )
        (output,) = graph.graph.find_nodes(op="output")
        assert not list(output.all_input_nodes)
