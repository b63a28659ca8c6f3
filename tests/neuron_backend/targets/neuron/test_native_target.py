"""The native target through a Dynamo backend with TorchNeuron's AOT settings."""

import copy
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch.fx import GraphModule
from transformers import PreTrainedModel

from decodekit.decoding import Generator, Greedy, MaxNewTokens, Processor, Sample, Slots
from decodekit.neuron_backend import CompiledDecoder, NativeTarget, compile_decoder, lint_graph, load_decoder
from decodekit.neuron_backend.artifacts.manifest import Manifest
from decodekit.neuron_backend.lint.budget import Budget, lint_budget
from decodekit.neuron_backend.lowering.step_graphs import program_shapes
from decodekit.neuron_backend.models.early_exit import first_layers
from decodekit.neuron_backend.on_device_sampling.fused_forwards import FusedForwards
from decodekit.neuron_backend.progress import Stage
from decodekit.neuron_backend.targets.neuron import native_target as native_target_module
from decodekit.neuron_backend.targets.neuron.detect import NeuronFound
from decodekit.neuron_backend.targets.neuron.native_program import NativeProgram
from decodekit.neuron_backend.targets.neuron.neuron_environment import (
    CACHE_FOLDER,
    COMPILER_ARGUMENTS,
    CORES,
    LOGICAL_CORES,
    NO_FALLBACK,
)
from decodekit.neuron_backend.targets.target import NOT_SAVED
from decodekit.neuron_backend.tensor_parallel.ranks import Ranks
from decodekit.processors import RepetitionPenalty, Temperature, TopP
from decodekit.speculation import DraftModel, DraftTree, SpeculativeGenerator, Tree

from .dynamo_stand_in import PERSISTENT, StandIn, calls

Models = Callable[..., PreTrainedModel]

SHAPE: dict[str, Any] = {
    "batch_size": 2,
    "max_length": 64,
    "widths": (1, 5),
    "tree_widths": (4,),
    "spans": (32, 64),
}
PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60, 1, 30]]
PARTS: dict[str, dict[str, Any]] = {
    "greedy": {"processors": RepetitionPenalty(1.2), "sampler": Greedy()},
    "sampled": {"processors": Temperature(0.9) | TopP(0.95), "sampler": Sample(seed=3)},
}

copy_ = torch.ops.aten.copy_.default


@attrs.frozen(eq=False)
class Made:
    """A decoder, and the backend that compiled it."""

    decoder: CompiledDecoder
    backend: StandIn

    def run(self, parts: dict[str, Any], drafter: Any = None) -> list[list[int]]:
        """Text, by plain decoding or with a drafter."""
        return run(self.decoder, parts, drafter)


def run(decoder: CompiledDecoder, parts: dict[str, Any], drafter: Any = None) -> list[list[int]]:
    """Text that is long enough to leave the first span."""
    stop = MaxNewTokens(45)
    # Earlier tests' forwards have overwritten the recorded tokens.
    Slots.of(decoder).forget()
    if drafter is None:
        return Generator(decoder, stop=stop, **parts)(PROMPTS).ids
    return SpeculativeGenerator(decoder, drafter, num_draft_tokens=4, stop=stop, **parts)(PROMPTS).ids


@pytest.fixture(scope="module")
def made(tiny_model: Models) -> Made:
    """Two widths and a tree width, over two spans."""
    backend = StandIn()
    target = NativeTarget(backend=backend, device="cpu")
    return Made(compile_decoder(tiny_model("llama"), target=target, **SHAPE), backend)


@pytest.fixture(scope="module")
def eager(tiny_model: Models) -> CompiledDecoder:
    """The same decoder, eager."""
    return CompiledDecoder(tiny_model("llama"), **SHAPE)


@pytest.fixture(scope="module")
def one(tiny_model: Models) -> CompiledDecoder:
    """A decoder with one program."""
    return compile_one(tiny_model("llama"))


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is set, before and after a test."""
    for name in (CORES, CACHE_FOLDER, NO_FALLBACK, COMPILER_ARGUMENTS):
        monkeypatch.setenv(name, "to be removed")
        monkeypatch.delenv(name)


def compile_one(model: PreTrainedModel, **options: Any) -> CompiledDecoder:
    """The smallest decoder: one program, of one layer."""
    target = NativeTarget(**{"backend": StandIn(), "device": "cpu", **options})
    return compile_decoder(first_layers(model, 1), max_length=16, widths=(1,), target=target)


class TestGraphs:
    """Graphs that the compiler gets."""

    def test_there_is_one_for_each_width_and_span(self, made: Made) -> None:
        """No graph break, and no second compilation for a shape."""
        programs = len(program_shapes(made.decoder))

        assert 6 == programs == len(made.backend.traced) == len(made.backend.graphs)

    def test_they_write_each_tensor_of_the_cache_once(self, made: Made) -> None:
        """Into an input, at the end, which becomes an alias on the device."""
        for graph in made.backend.graphs:
            written = [node.args[0] for node in calls(graph, copy_)]

            assert len(made.decoder.cache.tensors) == len(written) == len(set(written))
            assert all(node.op == "placeholder" for node in written)

    def test_they_return_only_the_logits(self, made: Made) -> None:
        """And no cache, which would be copied back."""
        shapes = Counter()
        for graph in made.backend.graphs:
            (output,) = graph.graph.find_nodes(op="output")
            (outputs,) = output.args
            (logits,) = outputs
            shapes[tuple(logits.meta["val"].shape)] += 1

        assert {(2, 1, 61): 2, (2, 5, 61): 2, (2, 4, 61): 2} == dict(shapes)

    def test_they_hold_nothing_that_is_refused(self, made: Made) -> None:
        """After decodekit's lowering, Dynamo and AOTAutograd."""
        assert [] == [finding for graph in made.backend.graphs for finding in lint_graph(graph)]

    def test_they_are_of_fixed_shape(self, made: Made) -> None:
        """No input has a symbolic dimension."""
        for graph in made.backend.graphs:
            for node in graph.graph.find_nodes(op="placeholder"):
                assert all(type(size) is int for size in node.meta["val"].shape)


class TestTokens:
    """The text equals eager's, and generation compiles nothing."""

    @pytest.fixture(autouse=True)
    def untouched(self, made: Made) -> Iterator[None]:
        """No graph is compiled, and no buffer of the cache moves."""
        before = len(made.backend.traced), [buffer.data_ptr() for buffer in made.decoder.cache.tensors]
        yield
        assert before == (
            len(made.backend.traced),
            [buffer.data_ptr() for buffer in made.decoder.cache.tensors],
        )

    @pytest.mark.parametrize("parts", PARTS)
    def test_of_plain_decoding(self, parts: str, made: Made, eager: CompiledDecoder) -> None:
        """Ragged rows, across two spans."""
        text = made.run(PARTS[parts])

        assert run(eager, PARTS[parts]) == text
        assert sum(len(set(row)) for row in text) > 20

    @pytest.mark.parametrize("parts", PARTS)
    def test_with_a_draft_model(
        self, parts: str, made: Made, eager: CompiledDecoder, tiny_model: Models
    ) -> None:
        """A draft that is right in part: the same weights, with a window of 16."""
        draft = DraftModel(CompiledDecoder(tiny_model("mistral"), batch_size=2, max_length=64, widths=(1, 2)))

        assert run(eager, PARTS[parts]) == made.run(PARTS[parts], draft)

    @pytest.mark.parametrize("parts", PARTS)
    def test_with_trees(self, parts: str, made: Made, eager: CompiledDecoder, tiny_model: Models) -> None:
        """With columns in scratch slots."""
        draft = CompiledDecoder(tiny_model("mistral"), batch_size=2, max_length=64, widths=(1, 2))
        trees = DraftTree(draft, tree=Tree.comb(2, 1))

        assert run(eager, PARTS[parts]) == made.run(PARTS[parts], trees)

    def test_in_inference_mode(self, made: Made, eager: CompiledDecoder) -> None:
        """The caller's inference mode does not reach the programs."""
        with torch.inference_mode():
            text = made.run(PARTS["greedy"])

        assert run(eager, PARTS["greedy"]) == text

    @pytest.mark.parametrize("of_the_decoder", [False, True])
    def test_with_another_number_of_threads(
        self, of_the_decoder: bool, made: Made, eager: CompiledDecoder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Dynamo would compile again: the programs keep the number that they were compiled with."""
        before = torch.get_num_threads()
        if of_the_decoder:
            monkeypatch.setattr(made.decoder, "threads", before + 1)
        else:
            torch.set_num_threads(before + 1)
        try:
            assert run(eager, PARTS["greedy"]) == made.run(PARTS["greedy"])
        finally:
            torch.set_num_threads(before)

    def test_with_any_position_of_an_idle_row(self, made: Made, eager: CompiledDecoder) -> None:
        """Positions have 32 bits on a device; those beside padding may have more."""
        ids = torch.tensor([[-1, -1, -1, -1, -1], [1, 2, 3, -1, -1]])
        for start in (-(2**62), 2**62, 2**31):
            cache_pos = torch.tensor([start, 4])
            found, expected = made.decoder.forward(ids, cache_pos), eager.forward(ids, cache_pos)

            torch.testing.assert_close(expected[1, :3], found[1, :3], atol=1e-4, rtol=1e-4)


class TestDecoder:
    def test_gives_ordinary_tensors_of_the_host(self, made: Made) -> None:
        """Callers may write to logits."""
        logits = made.decoder.forward(torch.tensor([[1], [2]]), torch.tensor([0, 0]))

        assert ("cpu", False, False) == (logits.device.type, logits.requires_grad, logits.is_inference())

    def test_has_its_target_and_compiled(self, made: Made) -> None:
        """``compiled`` is True."""
        assert ("neuron-native", True) == (made.decoder.target, made.decoder.compiled)

    def test_refuses_to_compile_later(self, one: CompiledDecoder) -> None:
        """Instead of compiling for minutes during generation: the error names the program."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with pytest.raises(
                Exception, match="a forward must not compile: got a second graph of width_1_span_16"
            ):
                one.forward(torch.tensor([[1]]), torch.tensor([0]))
        finally:
            torch.set_default_dtype(before)

    def test_takes_a_registered_backend_by_name(self, tiny_model: Models) -> None:
        """As TorchNeuron's."""
        backend = StandIn()

        @torch._dynamo.register_backend(name="decodekit_stand_in")
        def stand_in(graph: GraphModule, inputs: Any) -> Callable[..., Any]:
            return backend(graph, inputs)

        compile_one(tiny_model("llama"), backend="decodekit_stand_in")

        assert 1 == len(backend.graphs)

    def test_says_what_it_compiles(self, tiny_model: Models) -> None:
        """The first run of a program compiles it."""
        told: list[Stage] = []
        compile_decoder(
            first_layers(tiny_model("llama"), 1),
            max_length=16,
            widths=(1,),
            target=NativeTarget(backend=StandIn(), device="cpu"),
            progress=told.append,
        )

        assert [
            "lowering width_1_span_16",
            "linting the graphs",
            "running programs over 16 positions",
            "compiling all programs for Neuron",
            "comparing the program compiled for the device with the stock model",
        ] == [one.name for one in told if one.seconds is not None][-5:]

    @pytest.mark.slow
    def test_can_be_left_early(self, made: Made, eager: CompiledDecoder) -> None:
        """An early exit after the first layer, compiled by the same target."""
        draft = made.decoder.early_exit(1, widths=(1,))

        assert "neuron-native" == draft.target
        assert run(eager, PARTS["greedy"]) == made.run(PARTS["greedy"], DraftModel(draft))

    def test_early_exit_of_a_host_decoder_has_no_program_of_rows(self, eager: CompiledDecoder) -> None:
        """Which would take minutes each: nothing asked for them."""
        early = eager.early_exit(1, target=NativeTarget(backend=StandIn(), device="cpu"))

        assert eager.copies_rows
        assert (False, ()) == (early.copies_rows, tuple(early.row_widths))

    def test_in_inference_mode_it_is_compiled(self, tiny_model: Models) -> None:
        """Nothing that it keeps is of that mode."""
        with torch.inference_mode():
            decoder = compile_one(tiny_model("llama"))

        assert run(decoder, PARTS["greedy"]) == run(compile_one(tiny_model("llama")), PARTS["greedy"])

    def test_is_compared_with_the_stock_model(self, tiny_model: Models) -> None:
        """A compiler that computes something else is detected."""

        def wrong(graph: GraphModule, inputs: Any) -> Callable[..., Any]:
            return lambda *given: tuple(1.01 * logits for logits in graph(*given))

        with pytest.raises(ValueError, match="the program compiled for the device differs from the stock"):
            compile_one(tiny_model("llama"), backend=wrong)


class TestSaving:
    """Compiled programs are saved as artifacts of the compiler's cache."""

    @pytest.fixture
    def saved(self, one: CompiledDecoder, tmp_path: Path) -> Any:
        """A saved decoder, on a machine that did not compile it."""
        one.save(tmp_path / "decoder")
        PERSISTENT.clear()
        return tmp_path / "decoder"

    def test_a_second_start_is_a_load(self, saved: Path, one: CompiledDecoder) -> None:
        """The compiler is not called, and the logits are bit-identical."""
        backend = StandIn()
        loaded = load_decoder(saved, target=NativeTarget(backend=backend, device="cpu"))

        assert ([], 1, False) == (backend.compiled, len(backend.graphs), loaded.compiled)
        ids, cache_pos = torch.tensor([[7]]), torch.tensor([0])
        assert torch.equal(one.forward(ids, cache_pos), loaded.forward(ids, cache_pos))

    def test_a_loaded_decoder_can_be_saved(self, saved: Path, tmp_path: Path) -> None:
        """With the programs that it was loaded from."""
        load_decoder(saved, target=NativeTarget(backend=StandIn(), device="cpu")).save(tmp_path / "copy")
        program = "programs/compiled.bin"

        assert (saved / program).read_bytes() == (tmp_path / "copy" / program).read_bytes()

    @pytest.mark.slow
    def test_programs_of_others_are_compiled_again(
        self, saved: Path, monkeypatch: Any, tmp_path: Path
    ) -> None:
        """Unless the caller trusts the folder."""
        monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "another machine"))
        first, second = StandIn(), StandIn()
        trusted = load_decoder(saved, trust_programs=True, target=NativeTarget(backend=first, device="cpu"))
        PERSISTENT.clear()
        again = load_decoder(saved, target=NativeTarget(backend=second, device="cpu"))

        assert (0, False) == (len(first.compiled), trusted.compiled)
        assert (1, True) == (len(second.compiled), again.compiled)

    def test_versions_have_to_match(self, saved: Path, monkeypatch: Any) -> None:
        """The versions of the packages that compiled."""
        target = NativeTarget(backend=StandIn(), device="cpu")
        manifest = Manifest.read(saved)
        for saved_versions, here, message in (
            ({"torch": "1.0"}, {}, r"by the torch that compiled them, 1\.0: got"),
            (
                {"neuronx-cc": "2.26"},
                {"neuronx-cc": "2.28"},
                r"neuronx-cc that compiled them, 2\.26: got 2\.28",
            ),
            ({"torch-neuronx": "2.14"}, {}, r"torch-neuronx that compiled them, 2\.14: got none"),
            ({}, {"torch-neuronx": "2.14"}, r"torch-neuronx that compiled them, none: got 2\.14"),
        ):
            monkeypatch.setattr(native_target_module, "neuron_versions", lambda here=here: here)
            with pytest.raises(ValueError, match=message):
                target.check(attrs.evolve(manifest, versions={**manifest.versions, **saved_versions}))

    def test_a_name_is_refused(self, saved: Path) -> None:
        """The folder names the target; an option must be a target object."""
        with pytest.raises(TypeError, match="'target' must be a target such as"):
            load_decoder(saved, target="neuron-native")  # type: ignore[arg-type]

    def test_another_target_is_refused(self, saved: Path) -> None:
        """The folder names the one that it was saved by."""
        with pytest.raises(ValueError, match="must be the one that was saved, 'neuron-native': got 'eager'"):
            load_decoder(saved, target=CompiledDecoder.compiler)


class TestStrict:
    def test_a_refused_graph_is_an_error(self, tiny_model: Models) -> None:
        """No device has float64; the compiler is not called."""
        backend = StandIn()
        with pytest.raises(
            ValueError, match=r"refuse: got\n  width_1_span_16: .*no float64(.|\n)*more\n.*strict=False"
        ):
            compile_one(tiny_model("llama", torch.float64), backend=backend)

        assert [] == backend.traced

    def test_without_it_is_a_warning(self, tiny_model: Models) -> None:
        """Then the compiler is called anyway."""
        with pytest.warns(UserWarning, match="no float64"):
            decoder = compile_one(tiny_model("llama", torch.float64), strict=False)

        assert decoder.compiled

    @pytest.mark.mostly_slow(every=2)
    @pytest.mark.parametrize("strict", [True, False])
    def test_operations_left_to_the_host_are_named(
        self, strict: bool, tiny_model: Models, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only this decoder's operations count."""
        left = ["aten::multinomial"]
        runtime = SimpleNamespace(
            clear_op_tracking=lambda: left.__setitem__(slice(None), ["aten::sort", "aten::sort"]),
            get_fallback_ops=lambda: left,
        )
        monkeypatch.setitem(sys.modules, "torch_neuronx", runtime)
        outcome: Any = (
            pytest.raises(ValueError, match="got aten::sort left")
            if strict
            else pytest.warns(UserWarning, match="got aten::sort left to the host")
        )
        with outcome:
            compile_one(tiny_model("llama"), strict=strict)

    def test_torch_compile_has_to_be_on(self, tiny_model: Models, monkeypatch: pytest.MonkeyPatch) -> None:
        """Otherwise everything would silently run eager."""
        monkeypatch.setattr(torch, "compile", lambda graph, **options: graph)
        with pytest.raises(RuntimeError, match="must make one graph of width_1_span_16: got 0"):
            compile_one(tiny_model("llama"))


@pytest.mark.usefixtures("variables")
class TestOptions:
    def test_reach_the_runtime_and_the_compiler(self, tiny_model: Models, tmp_path: Path) -> None:
        """Arguments during compilation; cores and cache permanently."""
        seen = []

        def backend(graph: GraphModule, inputs: Any) -> Callable[..., Any]:
            seen.append((os.environ[COMPILER_ARGUMENTS], os.environ[CORES], os.environ[CACHE_FOLDER]))
            return StandIn()(graph, inputs)

        compile_one(
            tiny_model("llama"),
            backend=backend,
            compiler_args=["-O1", "--lnc=1"],
            cores="4-7",
            cache_folder=tmp_path / "cache",
        )

        assert [("-O1 --lnc=1", "4-7", str(tmp_path / "cache"))] == seen
        assert ("4-7", None) == (os.environ.get(CORES), os.environ.get(COMPILER_ARGUMENTS))

    def test_that_contradict_a_launcher_are_refused(self, tiny_model: Models) -> None:
        """Before anything is compiled."""
        os.environ[CORES] = "0"
        backend = StandIn()
        with pytest.raises(ValueError, match=f"{CORES} must be unset or '1'"):
            compile_one(tiny_model("llama"), backend=backend, cores="1")

        assert [] == backend.traced

    def test_strict_lets_no_failed_program_run_on_the_host(self) -> None:
        """If there is a device."""
        assert {NO_FALLBACK: "1"} == NativeTarget()._variables(None)
        assert {} == NativeTarget(device="cpu")._variables(None)

    @pytest.mark.parametrize(("before", "after"), [(None, "0"), ("0", "0"), ("1", "1")])
    def test_others_may_run_there(
        self, before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The runtime's own default is to raise; what is set already stays."""
        monkeypatch.delenv(NO_FALLBACK, raising=False)
        if before is not None:
            monkeypatch.setenv(NO_FALLBACK, before)

        assert {NO_FALLBACK: after} == NativeTarget(strict=False)._variables(None)

    def test_each_rank_has_its_own_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Unless there is no device, or only one process."""
        monkeypatch.delenv(CORES, raising=False)
        monkeypatch.setenv("LOCAL_RANK", "2")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
        ranks = Ranks(degree=4, rank=2, group="")

        assert "2" == NativeTarget()._variables(ranks)[CORES]
        assert "6" == NativeTarget(cores="4-7")._variables(ranks)[CORES]
        assert CORES not in NativeTarget()._variables(None)
        assert CORES not in NativeTarget(device="cpu")._variables(ranks)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"strict": 1}, "'strict' must be"),
            ({"compiler_args": "-O1"}, "'compiler_args' must be a sequence of strings: got '-O1'"),
            ({"compiler_args": [1]}, "'compiler_args' must be a sequence of strings"),
            *(
                ({"cores": cores}, f"'cores' must be numbers and ascending ranges, .*: got '{cores}'")
                for cores in ("all", "7-4", "1-2-3", "0,0", "3,2-4")
            ),
            ({"cores": 4}, "'cores' must be"),
            ({"device": None}, "'device' must be"),
        ],
    )
    def test_that_are_invalid_are_refused(self, options: dict[str, Any], message: str) -> None:
        """When the target is constructed."""
        with pytest.raises((ValueError, TypeError), match=message):
            NativeTarget(**options)

    def test_without_a_device_the_error_has_the_report(self, tiny_model: Models) -> None:
        """A stub, no package, or one for other devices; no variable stays set."""
        found = NeuronFound("traced", "programs are made by torch_neuronx.trace", devices=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native_target_module, "probe", lambda count_cores: found)
            with pytest.raises(ValueError, match="TorchNeuron and a Neuron core: got\nAWS Neuron: traced"):
                compile_one(tiny_model("llama"), device="neuron", cores="1")

        assert CORES not in os.environ

    @pytest.mark.parametrize("release", ["2.9.0", "2.12.9", "2", "3rc"])
    def test_an_older_torch_neuronx_is_refused(self, release: str) -> None:
        """With its number."""
        found = NeuronFound("native", "it has a device", {"torch-neuronx": release}, cores=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native_target_module, "probe", lambda count_cores: found)
            with pytest.raises(
                ValueError, match=rf"(?s)needs torch-neuronx 2.13 or later.*torch-neuronx {release}"
            ):
                NativeTarget().require()

    @pytest.mark.parametrize("release", ["2.13.3", "2.14.3+beta", "3.0"])
    def test_newer_ones_are_taken(self, release: str) -> None:
        """Numbers are compared, not text."""
        found = NeuronFound("native", "it has a device", {"torch-neuronx": release}, cores=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native_target_module, "probe", lambda count_cores: found)
            NativeTarget().require()

    def test_too_many_programs_are_refused(self, tiny_model: Models) -> None:
        """Before anything is compiled."""
        backend = StandIn()
        target = NativeTarget(backend=backend, device="cpu")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lint_budget, "__defaults__", (Budget(programs=1),))
            with pytest.raises(ValueError, match="programs must be <= 1: got 2"):
                compile_decoder(
                    first_layers(tiny_model("llama"), 1), max_length=16, widths=(1, 2), target=target
                )

        assert not backend.traced

    def test_the_compiler_gets_the_runtimes_number_of_cores(
        self, tiny_model: Models, monkeypatch: pytest.MonkeyPatch, variables: None
    ) -> None:
        """At each compilation."""
        seen = []

        class Seeing(StandIn):
            def __call__(self, graph: GraphModule, inputs: Any) -> Any:
                seen.append(os.environ[COMPILER_ARGUMENTS])
                return super().__call__(graph, inputs)

        monkeypatch.setenv(LOGICAL_CORES, "1")
        compile_one(tiny_model("llama"), backend=Seeing(), compiler_args=("-O1",))

        assert ["-O1 --lnc=1"] == seen


class TestSampling:
    """A chain and a sampler within the graphs."""

    @pytest.fixture(scope="class")
    @staticmethod
    def choosing(tiny_model: Models) -> Made:
        """A decoder with one scored width and one span."""
        backend = StandIn()
        return Made(
            compile_decoder(
                tiny_model("llama"),
                batch_size=2,
                max_length=64,
                widths=(1,),
                spans=(64,),
                target=NativeTarget(backend=backend, device="cpu"),
                **PARTS["sampled"],
            ),
            backend,
        )

    def test_is_one_more_graph_with_one_more_output(self, choosing: Made) -> None:
        """The cache is written as before, and the lint finds nothing."""
        scoring, fused = choosing.backend.graphs
        (output,) = fused.graph.find_nodes(op="output")

        assert [(2, 1), (2, 1, 61)] == [tuple(node.meta["val"].shape) for node in output.args[0]]
        assert len(calls(scoring, copy_)) == len(calls(fused, copy_)) == len(choosing.decoder.cache.tensors)
        assert [] == lint_graph(fused)

    def test_gives_the_hosts_text(self, choosing: Made, eager: CompiledDecoder) -> None:
        """And explain() says that the device samples."""
        compiled = len(choosing.backend.graphs)

        assert choosing.decoder.can_sample(PARTS["sampled"]["processors"], PARTS["sampled"]["sampler"], 2)
        assert run(eager, PARTS["sampled"]) == choosing.run(PARTS["sampled"])
        assert compiled == len(choosing.backend.graphs)

    @pytest.mark.mostly_slow(every=3)
    @pytest.mark.parametrize(
        ("chain", "why"),
        [
            pytest.param(PARTS["sampled"]["processors"], "it is part of the forward", id="the same chain"),
            pytest.param(Temperature(0.5), NOT_SAVED, id="another"),
            pytest.param(None, FusedForwards._refusal, id="none"),
        ],
    )
    def test_is_loaded_with_the_same_chain(
        self, chain: Processor | None, why: str, choosing: Made, eager: CompiledDecoder, tmp_path: Path
    ) -> None:
        """With another chain the host samples, and explain() says why; nothing is compiled."""
        backend, parts = StandIn(), PARTS["sampled"]
        choosing.decoder.save(tmp_path / "decoder")

        loaded = load_decoder(
            tmp_path / "decoder",
            processors=chain,
            sampler=None if chain is None else Sample(seed=0),
            target=NativeTarget(backend=backend, device="cpu"),
        )

        assert [] == backend.compiled
        assert {why} == {place.why for place in loaded.explain().places}
        assert run(eager, parts) == run(loaded, parts)


class TestDevice:
    """Tensors on a device that has shapes only, whose programs return zeros."""

    @pytest.fixture
    def given(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The devices of the programs' inputs."""
        monkeypatch.setattr(CompiledDecoder, "compare", lambda self, whose: None)
        return []

    @pytest.fixture
    def decoder(self, given: list[str], tiny_model: Models) -> CompiledDecoder:
        """A decoder compiled for that device."""

        def backend(graph: GraphModule, inputs: Any) -> Callable[..., Any]:
            def program(*tensors: torch.Tensor) -> tuple[torch.Tensor]:
                given.extend(tensor.device.type for tensor in tensors)
                return (torch.zeros(1, 1, 61),)

            return program

        return compile_one(tiny_model("llama"), backend=backend, device="meta")

    def test_a_program_gets_no_host_tensors(self, decoder: CompiledDecoder, given: list[str]) -> None:
        """Weights, constants, cache and inputs are on the device; logits are copied back."""
        given.clear()
        logits = decoder.forward(torch.tensor([[1]]), torch.tensor([0]))

        assert {"meta"} == set(given)
        assert len(given) > len(list(decoder.step.model.parameters()))
        assert "cpu" == logits.device.type

    def test_the_cache_is_on_the_device_and_the_model_on_the_host(
        self, decoder: CompiledDecoder, tmp_path: Path
    ) -> None:
        """So that it can be saved."""
        assert {"meta"} == {buffer.device.type for buffer in decoder.cache.tensors}
        assert {"cpu"} == {weight.device.type for weight in decoder.step.model.parameters()}
        decoder.save(tmp_path / "decoder")

    def test_a_model_of_the_device_is_refused(self, tiny_model: Models) -> None:
        """The target moves it there."""
        model = copy.deepcopy(tiny_model("llama")).to("meta")

        with pytest.raises(ValueError, match="'model' must be on the CPU: got meta"):
            compile_decoder(model, max_length=16, widths=(1,), target=NativeTarget(device="meta"))


def test_weights_stay_on_the_host(made: Made, tiny_model: Models) -> None:
    """For saving, comparison and early exit."""
    weight = tiny_model("llama").lm_head.weight

    assert weight is made.decoder.step.model.lm_head.weight
    assert all(isinstance(program, NativeProgram) for program in made.decoder.programs.values())
