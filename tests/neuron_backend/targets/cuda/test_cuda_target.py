"""The CUDA target on a stand-in. That its text equals eager's is tested in :mod:`.test_on_cuda`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch.fx import GraphModule
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PreTrainedModel

from decodekit.decoding import Generator, Greedy, MaxNewTokens
from decodekit.neuron_backend import (
    CudaTarget,
    NativeTarget,
    StaticDecoder,
    UnsupportedArchitecture,
    compile_decoder,
    load_decoder,
)
from decodekit.neuron_backend.models.early_exit import first_layers
from decodekit.neuron_backend.progress import Stage
from decodekit.neuron_backend.targets.cpu import toolchain
from decodekit.neuron_backend.targets.cuda import (
    cuda_recording,
    cuda_runtime,
    cuda_target as cuda_target_module,
)
from decodekit.neuron_backend.targets.cuda.cuda_program import CudaProgram
from decodekit.neuron_backend.targets.cuda.cuda_target import FACTS
from decodekit.neuron_backend.targets.layered.layer_graphs import NotLayered
from decodekit.neuron_backend.targets.registry import target_named
from decodekit.neuron_backend.targets.target import NOT_SAVED
from decodekit.processors import RepetitionPenalty, TopP
from decodekit.testing import check_decoder

from .cuda_stand_in import CudaStandIn

Models = Callable[..., PreTrainedModel]

ONE: dict[str, Any] = {"max_length": 16, "widths": (1,)}
NO_GPU = r"target 'cuda' needs a CUDA GPU, and a torch that is built for it: got torch .*"


@pytest.fixture(scope="module")
def small(tiny_model: Models) -> PreTrainedModel:
    """A model of one layer."""
    return first_layers(tiny_model("llama"), 1)


def stand_in(runtime: CudaStandIn | None = None, **options: Any) -> CudaTarget:
    """A target without a compiler."""
    return CudaTarget(**{"backend": None, "runtime": runtime or CudaStandIn(), **options})


def step(decoder: StaticDecoder, position: int = 0) -> torch.Tensor:
    """A forward of one token."""
    return decoder.forward(torch.tensor([[position + 1]]), torch.tensor([position]))


class TestRecording:
    def test_is_of_each_width_and_span_once(self, small: PreTrainedModel) -> None:
        """A span shorter than the width has no program; such a forward uses the next span's."""
        runtime = CudaStandIn()
        decoder = compile_decoder(
            small, target=stand_in(runtime), max_length=32, widths=(1, 12), spans=(8, 32), sampler=Greedy()
        )
        runtime.sealed = True
        logits = decoder.forward(torch.tensor([[1, 2, *[-1] * 10]]), torch.tensor([0]))

        assert 2 * 2 + 1 + 1 == runtime.recordings
        assert torch.isfinite(logits[0, :2]).all()

    def test_rows_of_the_device_cache_are_fed_and_copied(self, small: PreTrainedModel) -> None:
        """Beside its other rules: one recording of a width and span serves every row."""
        shape = {
            "batch_size": 3,
            "max_length": 32,
            "widths": (1, 4, 12),
            "scored_width": 4,
            "spans": (16, 32),
        }
        runtime = CudaStandIn()
        decoder = compile_decoder(small, target=stand_in(runtime), **shape)
        narrow = compile_decoder(small, target=stand_in(), row_widths=(4,), **shape)
        runtime.sealed = True

        assert (True, (12,), (4,)) == (decoder.copies_rows, decoder.row_widths, narrow.row_widths)
        assert 2 * (3 + 1) == runtime.recordings
        check_decoder(decoder)
        check_decoder(narrow)

    def test_is_a_stage_for_each(self, small: PreTrainedModel) -> None:
        """The largest first."""
        told: list[Stage] = []
        compile_decoder(small, target=stand_in(), max_length=16, widths=(1, 5), progress=told.append)

        assert [("compiling width_5_span_16", 1, 2), ("compiling width_1_span_16", 2, 2)] == [
            (one.name, one.number, one.of)
            for one in told
            if one.name.startswith("compiling") and one.seconds is not None
        ]

    def test_shares_memory(self, small: PreTrainedModel) -> None:
        """Inputs and logits have one buffer each, of the size that the widest program needs."""
        runtime = CudaStandIn()
        compile_decoder(small, target=stand_in(runtime), max_length=16, widths=(1, 5, 12))

        # Ids and the position of one row, 256 bytes each; and 12 columns of 61 logits.
        assert [512, 3072] == [len(block) for block in runtime.staged]

    def test_is_over_memory_that_stays(self, small: PreTrainedModel) -> None:
        """The stand-in detects that a buffer was replaced, which a recording would not see."""
        decoder = compile_decoder(small, target=stand_in(), **ONE)
        program = decoder.programs[1]
        assert isinstance(program, CudaProgram)
        step(decoder)
        replay = program.replays[17]
        moved = {name: tensor.clone() for name, tensor in replay.step.tensors.items()}
        replay.replay._run = attrs.evolve(replay.step, tensors=moved)

        with pytest.raises(AssertionError, match="a replay must find what it read where it was recorded"):
            step(decoder)

    def test_writes_all_that_is_read(self, small: PreTrainedModel) -> None:
        """Outputs are poisoned before a program runs."""
        runtime = CudaStandIn()
        decoder = compile_decoder(small, target=stand_in(runtime), **ONE)
        logits = step(decoder)

        assert torch.isfinite(logits).all()
        kept = logits.clone()
        step(decoder, 1)
        # Valid only until the next forward.
        assert not torch.equal(kept, logits)

    def test_is_refused_beyond_a_number(self, small: PreTrainedModel) -> None:
        """Before anything is recorded."""
        runtime = CudaStandIn()
        with pytest.raises(
            ValueError, match="widths and spans must make at most 3 programs: got 4; pass fewer"
        ):
            compile_decoder(
                small, target=stand_in(runtime, max_graphs=3), max_length=32, widths=(1, 5), spans=(8, 32)
            )

        assert 0 == runtime.recordings

    def test_takes_the_inputs_that_it_was_made_for(self, small: PreTrainedModel) -> None:
        """Others would be broadcast into the buffer of a whole batch."""
        decoder = compile_decoder(small, target=stand_in(), batch_size=2, **ONE)
        with pytest.raises(ValueError, match="inputs must be"):
            decoder.programs[1](torch.tensor([[1]]), torch.tensor([0]), decoder.cache.addresses(16))


def of_layers(number: int, windows: list[str]) -> PreTrainedModel:
    """A model of so many layers; the windows, if any, of each."""
    shape: dict[str, Any] = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": number,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config: Any = LlamaConfig(**shape)
    if windows:
        config = Gemma3TextConfig(**shape, head_dim=8, sliding_window=8, layer_types=windows)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    return model


class TestCompiler:
    """Programs are compiled by torch.compile before they are recorded."""

    @pytest.mark.parametrize(
        ("layers", "windows", "kinds"),
        [
            (1, [], 1),
            (4, [], 1),
            (6, ["sliding_attention", "sliding_attention", "full_attention"] * 2, 2),
        ],
    )
    def test_gets_each_part_once(self, layers: int, windows: list[str], kinds: int) -> None:
        """What precedes equal layers, one of them, and the rest, of fixed shapes; no forward compiles."""
        graphs: list[GraphModule] = []

        def backend(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            graphs.append(graph)
            return graph.forward

        decoder = compile_decoder(
            of_layers(layers, windows),
            target=stand_in(CudaStandIn(compiled=True), backend=backend),
            max_length=16,
            widths=(1, 5),
        )
        step(decoder)

        assert 2 * (2 + kinds) == len(graphs)
        for graph in graphs:
            for node in graph.graph.find_nodes(op="placeholder"):
                assert all(type(size) is int for size in node.meta["example_value"].shape)

    def test_gets_the_whole_of_layers_that_are_not_alone(
        self, tiny_model: Models, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The reason is logged, once for all spans."""
        whole = cuda_recording.lower_for_cuda

        def refused(*arguments: Any) -> Any:
            if arguments[-1] is not None:
                raise NotLayered("one reads another's")
            return whole(*arguments)

        monkeypatch.setattr(cuda_recording, "lower_for_cuda", refused)
        with caplog.at_level("INFO", "decodekit"):
            decoder = compile_decoder(
                tiny_model("llama"), target=stand_in(), max_length=32, widths=(1,), spans=(8, 32)
            )
        logged = [record.getMessage() for record in caplog.records if "as a whole" in record.getMessage()]

        assert torch.isfinite(step(decoder)).all()
        assert ["width_1 is compiled as a whole: one reads another's"] == logged

    def test_that_is_wrong_is_detected(self, small: PreTrainedModel) -> None:
        """By the comparison with the stock model."""

        def backend(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            def run(*tensors: Any) -> Any:
                out = graph.forward(*tensors)
                for tensor in tensors:
                    if tensor.shape[-1:] == (61,) and tensor.dim() == 3:
                        tensor.add_(torch.arange(61.0))
                return out

            return run

        with pytest.raises(UnsupportedArchitecture, match="the program recorded for the GPU differs"):
            compile_decoder(small, target=stand_in(CudaStandIn(compiled=True), backend=backend), **ONE)

    @pytest.mark.slow
    def test_may_be_inductor(self, small: PreTrainedModel) -> None:
        """The default. Only that it compiles the graph as a whole is tested here, not the GPU's kernels."""
        target = CudaTarget(runtime=CudaStandIn(compiled=True), options={"max_autotune": False})
        decoder = compile_decoder(small, target=target, weights="float8", **ONE)
        eager = StaticDecoder(small, weights="float8", **ONE)

        assert (
            Generator(eager, stop=MaxNewTokens(12))([[1, 2]]).ids
            == Generator(decoder, stop=MaxNewTokens(12))([[1, 2]]).ids
        )

    @pytest.mark.parametrize("options", [{"triton.cudagraphs": True}, ["max_autotune"]])
    def test_may_not_record_as_well(self, options: Any) -> None:
        """A recording within a recording fails."""
        with pytest.raises(ValueError, match=r"'options' must be a mapping without triton\.cudagraphs: got"):
            CudaTarget(options=options)


class TestWithoutAGpu:
    """Raised at once, with what the machine has."""

    def test_the_name_is_refused(self, small: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ValueError, match=NO_GPU):
            compile_decoder(small, target="cuda", **ONE)

    def test_the_target_is_refused(self, small: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ValueError, match=NO_GPU):
            compile_decoder(small, target=CudaTarget(), **ONE)

    def test_a_saved_decoder_is_refused(
        self, small: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        compile_decoder(small, target=stand_in(), **ONE).save(tmp_path / "decoder")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ValueError, match=NO_GPU):
            load_decoder(tmp_path / "decoder")

    @pytest.mark.parametrize("lack", [None, "nothing"])
    def test_auto_is_something_else(
        self, lack: str | None, small: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And ``"cuda"`` where there is one."""

        class Found(CudaStandIn):
            def lack(self) -> str | None:
                return lack

        monkeypatch.setattr(cuda_runtime, "CudaRuntime", Found)
        monkeypatch.setattr(cuda_target_module, "CudaRuntime", Found)
        monkeypatch.setattr(toolchain, "has_compiler", lambda: False)

        assert ("cuda" if lack is None else "eager") == target_named("auto").name


class TestFloat8:
    def test_needs_a_gpu_that_supports_it(self, small: PreTrainedModel) -> None:
        """Others cannot even convert it."""
        with pytest.raises(
            ValueError, match=r"weights='float8' needs .* capability 8\.9 or more: got A100, 8\.0; 'int8'"
        ):
            compile_decoder(small, target=stand_in(CudaStandIn((8, 0), "A100")), weights="float8", **ONE)

    def test_is_refused_by_neuron(self, small: PreTrainedModel) -> None:
        """Before anything is loaded or quantised."""
        with pytest.raises(
            ValueError, match="'weights' must be 'int8', 'int4' or None for target 'neuron-native'"
        ):
            compile_decoder(small, target=NativeTarget(), weights="float8", **ONE)

    def test_is_accepted_from_ada_on(self, small: PreTrainedModel) -> None:
        """The head stays int8, as in every format."""
        decoder = compile_decoder(small, target=stand_in(CudaStandIn((8, 9))), weights="float8", **ONE)

        assert {"float8": 7, "int8": 1} == {
            kind: list(decoder.weights.layers.values()).count(kind) for kind in ("float8", "int8")
        }


@pytest.fixture(scope="module")
def folder(small: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved decoder, with a chain."""
    folder = tmp_path_factory.mktemp("saved") / "decoder"
    chain = {"processors": RepetitionPenalty(1.2), "sampler": Greedy()}
    compile_decoder(small, target=stand_in(), weights="float8", **ONE, **chain).save(folder)
    return folder


class TestSaved:
    def test_holds_facts_and_no_native_code(self, folder: Path) -> None:
        """So trust does not apply."""
        (found,) = (folder / "programs").iterdir()
        facts = json.loads(found.read_text())

        assert FACTS == found.name
        assert {"name": "stand-in", "capability": "9.0", "cuda": "none"} == facts["gpu"]
        assert "width_1_span_16" in facts["programs"]

    def test_is_loaded_with_its_chain(self, folder: Path) -> None:
        """Recorded again; another chain runs on the host."""
        runtime = CudaStandIn()
        loaded = load_decoder(folder, target=stand_in(runtime), processors=RepetitionPenalty(1.2))
        other = load_decoder(folder, target=stand_in(), processors=TopP(0.5))

        assert 2 == runtime.recordings
        assert loaded.explain().on_device
        assert not other.explain().on_device
        assert NOT_SAVED in str(other.explain())

    @pytest.mark.parametrize("gpu", [CudaStandIn((9, 0), "another"), CudaStandIn((8, 9))])
    def test_is_refused_by_another_gpu(self, gpu: CudaStandIn, folder: Path) -> None:
        """It was compared with the stock model on the GPU that compiled it."""
        with pytest.raises(ValueError, match=r"on the kind of GPU that it was made on, .*stand-in.*: got"):
            load_decoder(folder, target=stand_in(gpu))

    def test_is_refused_by_another_torch(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would compile something else."""
        monkeypatch.setattr(torch, "__version__", "2.99")
        with pytest.raises(ValueError, match=r"the torch that made it, .*: got 2\.99"):
            load_decoder(folder, target=stand_in())
