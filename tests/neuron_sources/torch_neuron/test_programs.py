"""
The native target's programs through TorchNeuron's own backend, from a checkout.

Every kind of program is compiled as on a device, up to neuronx-cc: TorchNeuron's decompositions, its graph
passes, torch-mlir, and the aliases of inputs and outputs. Its results are run on the CPU.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import torch
from transformers import PreTrainedModel

from decodekit.decoding import Generator, Greedy, MaxNewTokens, Sample, Slots
from decodekit.neuron_backend import CompiledDecoder, NativeTarget, compile_decoder, lint_graph
from decodekit.neuron_backend.kv_cache import writes
from decodekit.neuron_backend.lint.budget import BUDGET
from decodekit.neuron_backend.lowering import step_graphs
from decodekit.processors import RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import PromptLookup, SpeculativeGenerator

from ...neuron_backend.targets.neuron import dynamo_stand_in
from .checkout import VARIABLE, Compiled, TorchNeuron, folder, torch_neuron
from .stablehlo import buffer_moves, scatter_operands

pytestmark = [
    pytest.mark.neuron_sources,
    pytest.mark.skipif(folder() is None, reason=f"{VARIABLE} names no checkout of TorchNeuron"),
]

Models = Callable[..., PreTrainedModel]

SHAPE: dict[str, Any] = {
    "batch_size": 2,
    "max_length": 64,
    "widths": (1, 5, 16),
    "scored_width": 5,
    "tree_widths": (4,),
    "spans": (64,),
}
ROWS: dict[str, Any] = {"row_widths": (16,), "copies_rows": True}
PARTS: dict[str, Any] = {
    "processors": RepetitionPenalty(1.2) | Temperature(0.9) | TopK(8) | TopP(0.9),
    "sampler": Sample(seed=3),
}
PROMPTS = [[5, 9, 2, 44, 17, 3, 8, 5, 9, 2, 44, 17, 3, 8, 1, 1, 4, 5], [60, 1, 30]]


@attrs.frozen(eq=False)
class Made:
    """A decoder, and TorchNeuron's backend that compiled it."""

    decoder: CompiledDecoder
    backend: TorchNeuron


@pytest.fixture(scope="module")
def backend() -> Iterator[TorchNeuron]:
    """TorchNeuron, where a failure is an error and not a fall-back to the host."""
    pytest.importorskip("torch_mlir")
    root = folder()
    assert root is not None
    with pytest.MonkeyPatch.context() as patch, torch_neuron(root) as found:
        patch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "1")
        yield found


@pytest.fixture(scope="module")
def made(backend: TorchNeuron, tiny_model: Models) -> Made:
    """
    One token, a verification, a prompt and a tree, sampled on the device where that is possible; a prompt of
    one row, and copies of rows.
    """
    target = NativeTarget(backend=backend, device="cpu")
    return Made(compile_decoder(tiny_model("llama"), target=target, **SHAPE, **ROWS, **PARTS), backend)


@pytest.fixture(scope="module")
def eager(tiny_model: Models) -> CompiledDecoder:
    """The same decoder, eager."""
    return CompiledDecoder(tiny_model("llama"), **SHAPE)


def text(decoder: CompiledDecoder, parts: dict[str, Any], drafter: Any = None) -> list[list[int]]:
    """Ids that a decoder generates."""
    # Earlier tests' forwards have overwritten the recorded tokens.
    Slots.of(decoder).forget()
    stop = MaxNewTokens(40)
    if drafter is None:
        return Generator(decoder, stop=stop, **parts)(PROMPTS).ids
    return SpeculativeGenerator(decoder, drafter, num_draft_tokens=4, stop=stop, **parts)(PROMPTS).ids


class TestText:
    """What the graphs compute after every pass, their caches written through the aliases."""

    @pytest.mark.parametrize("parts", [{"sampler": Greedy()}, PARTS], ids=["greedy", "sampled-on-the-device"])
    @pytest.mark.parametrize("drafter", [None, PromptLookup()], ids=["plain", "drafts"])
    def test_is_that_of_eager_mode(
        self, made: Made, eager: CompiledDecoder, parts: dict[str, Any], drafter: Any
    ) -> None:
        """Prompts of different lengths, longer than the widest forward."""
        assert text(eager, parts) == text(made.decoder, parts, drafter)


class TestPrograms:
    """What neuronx-cc would get."""

    def test_are_all_compiled(self, made: Made) -> None:
        """One for each width and tree, one more where it samples, one of a row and one that copies."""
        assert 8 == len(made.backend.programs) == len(step_graphs.program_shapes(made.decoder))

    def test_break_no_rule(self, made: Made) -> None:
        """After the decompositions, which are what is compiled."""
        assert [] == [str(found) for program in made.backend.programs for found in lint_graph(program.graph)]

    def test_have_each_cache_tensor_as_an_alias(self, made: Made) -> None:
        """Written where it is, and not returned."""
        for program in made.backend.programs:
            assert len(made.decoder.cache.tensors) == program.stablehlo.count("must_alias")

    def test_scatter_into_an_input_itself(self, made: Made) -> None:
        """Not into a transposed or flattened copy."""
        shapes = {tuple(tensor.shape) for tensor in made.decoder.cache.tensors}
        for program in made.backend.programs:
            written = [found for found in scatter_operands(program.stablehlo) if found.shape in shapes]

            assert len(made.decoder.cache.tensors) == len(written)
            assert all(found.name.startswith("%arg") for found in written)
            assert all(found.indices <= BUDGET.scatter_indices for found in written)

    def test_do_not_move_the_cache(self, made: Made) -> None:
        """No transpose, copy, reshape or conversion of a whole tensor of it."""
        shapes = {tuple(tensor.shape) for tensor in made.decoder.cache.keys}

        assert [0] * 8 == [buffer_moves(program.stablehlo, shapes) for program in made.backend.programs]

    def test_read_rows_whole(self, made: Made) -> None:
        """A row to be fed or copied is one piece of each buffer, not one for each number."""
        heads, _, dim = made.decoder.cache.keys[0].shape[1:]
        attended = len(made.decoder.cache.addresses(64))
        piece = rf"stablehlo\.gather.*slice_sizes = array<i64: 1, {heads}, {attended}, {dim}>"
        found = [len(re.findall(piece, program.stablehlo)) for program in made.backend.programs]

        assert [0] * 6 + [len(made.decoder.cache.states)] * 2 == sorted(found)

    def test_compute_nothing_in_float64(self, made: Made) -> None:
        """Nor before TorchNeuron's own conversion of constants, in the graph."""
        for program in made.backend.programs:
            assert not re.search(r"-> .*f64", program.stablehlo)
            assert not [node for node in program.graph.graph.nodes if _is_float64(node)]


def test_a_write_by_index_put_would_be_found(backend: TorchNeuron, tiny_model: Models) -> None:
    """Control: the form that other targets use, which TorchNeuron flattens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_graphs, "write_by_scatter", writes.write_in_place)
        target = NativeTarget(backend=backend, device="cpu", strict=False)
        with pytest.warns(UserWarning, match="index-put"):
            decoder = compile_decoder(
                tiny_model("llama"), batch_size=2, max_length=64, widths=(1,), spans=(64,), target=target
            )
    program = backend.programs.pop()
    shapes = {tuple(tensor.shape) for tensor in decoder.cache.keys}

    assert buffer_moves(program.stablehlo, shapes) > 0
    assert not [one for one in scatter_operands(program.stablehlo) if one.shape in shapes]
    assert {"arange"} == {finding.rule for finding in lint_graph(program.graph)}


class TestDecompositions:
    """The stand-in's table against TorchNeuron's."""

    def test_the_stand_in_has_what_our_programs_need(self, made: Made) -> None:
        """What TorchNeuron replaces in them, the stand-in replaces too; and it replaces nothing else."""
        lowered = [
            step_graphs.lower_step(shape.step, shape.width, made.decoder.cache, shape.span)
            for shape in step_graphs.program_shapes(made.decoder)
        ]
        used = {node.target for graph in lowered for node in graph.graph.nodes}

        assert set(dynamo_stand_in.TABLE) <= set(made.backend.table)
        assert used & set(made.backend.table) <= set(dynamo_stand_in.TABLE)

    def test_index_put_is_flattened(self, backend: TorchNeuron) -> None:
        """The reason of the lint's rule."""
        compiled = _compiled(
            backend, lambda x, i: x.index_put((i,), x[:1]), torch.ones(3, 4), torch.tensor([1])
        )

        (found,) = scatter_operands(compiled.stablehlo)
        assert ((12,), 4) == (found.shape, found.indices)

    @pytest.mark.parametrize(
        "function",
        [lambda x, i: x.cumsum(-1), lambda x, i: x.logcumsumexp(-1), lambda x, i: x.index_copy(0, i, x[:1])],
        ids=["cumsum", "logcumsumexp", "index-copy"],
    )
    def test_what_the_lint_lets_pass_is_lowered(self, backend: TorchNeuron, function: Any) -> None:
        """To StableHLO, without float64."""
        compiled = _compiled(backend, function, torch.ones(3, 4), torch.tensor([1]))

        assert not re.search(r"-> .*f64", compiled.stablehlo)


def _compiled(backend: TorchNeuron, function: Any, *inputs: Any) -> Compiled:
    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*inputs)
    return backend.programs.pop()


def _is_float64(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64
