import gc
import json
import os
import subprocess
import sys
import textwrap
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import MinLengthLogitsProcessor, Phi3Config, PreTrainedModel, Qwen3NextConfig

from decodekit.decoding import Greedy, MaxNewTokens, Sample
from decodekit.neuron_backend import NativeTarget, StaticDecoder, compile_decoder
from decodekit.neuron_backend.compiled_decoder import CompiledDecoder
from decodekit.neuron_backend.models.tokenizer_source import load_tokenizer
from decodekit.neuron_backend.models.unsupported import UnsupportedArchitecture
from decodekit.neuron_backend.serialization.saved_model import load_model
from decodekit.neuron_backend.sizing.model_facts import facts_of_config
from decodekit.processors import Temperature, TopK, TopP

PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60, 1, 30]]


class TestCpu:
    """Programs compiled by AOTInductor."""

    def test_llama_gives_the_stock_models_text(self, compiled_llama, tiny_model, greedy, stock):
        """Rows of different lengths through two programs over one cache."""
        assert stock(tiny_model("llama"), PROMPTS, 40) == greedy(compiled_llama, PROMPTS, 40)

    @pytest.mark.slow
    def test_gemma2_gives_the_stock_models_text(self, compiled_gemma2, tiny_model, greedy, stock):
        """Beyond the sliding window of 16, with a prefill that scores one column."""
        assert stock(tiny_model("gemma2"), PROMPTS, 48) == greedy(compiled_gemma2, PROMPTS, 48)

    def test_equals_eager_with_padding_and_rewinds(self, compiled_llama, llama):
        """The same forwards, column by column, up to rounding."""
        generator = torch.Generator().manual_seed(3)
        for start in (0, 4, 2, 7, 5, 11):
            ids = torch.randint(-1, 61, (2, 5), generator=generator)
            ids[:, -1] = 7
            cache_pos = torch.tensor([start, max(start - 1, 0)])

            found, expected = compiled_llama.forward(ids, cache_pos), llama.forward(ids, cache_pos)

            torch.testing.assert_close(found[ids >= 0], expected[ids >= 0], atol=1e-4, rtol=1e-4)

    def test_slots_without_a_token_weigh_nothing(self, compiled_llama):
        """Garbage beyond the tokens and in the spare slot changes no bit."""
        ids, cache_pos = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]), torch.tensor([0, 0])
        compiled_llama.forward(ids, cache_pos)
        expected = compiled_llama.forward(ids, cache_pos + 5)
        reserved = compiled_llama.cache.reserved
        for buffer in compiled_llama.cache.tensors:
            buffer[:, :, :reserved] = 1e9
            buffer[:, :, reserved + 5 :] = 1e9

        assert torch.equal(expected, compiled_llama.forward(ids, cache_pos + 5))

    def test_ids_may_have_any_strides(self, compiled_llama):
        """Programs require contiguous inputs, so views are copied first."""
        board = torch.arange(40).view(10, 4).T[1:3, ::2]
        cache_pos = torch.tensor([0, 9, 0])[::2]
        expected = compiled_llama.forward(
            board.clone(memory_format=torch.contiguous_format), cache_pos.clone()
        )

        assert torch.equal(expected, compiled_llama.forward(board, cache_pos))

    def test_programs_share_the_models_weights(self, compiled_llama, tiny_model):
        """There is no copy of them."""
        model = tiny_model("llama")

        for program in compiled_llama.programs.values():
            for name in ("lm_head", "model.embed_tokens"):
                used = program._tensors[f"model.{name}.weight"]
                assert model.get_submodule(name).weight.data_ptr() == used.data_ptr()

    def test_no_forward_compiles(self, compiled_llama, monkeypatch):
        """No compiler runs after construction."""
        assert compiled_llama.target == "cpu"
        assert compiled_llama.compiled
        monkeypatch.setattr(torch.export, "export", None)
        monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", None)
        monkeypatch.setenv("PATH", "/nonexistent")

        for width in compiled_llama.shape.widths:
            logits = compiled_llama.forward(torch.ones(2, width, dtype=torch.int64), torch.tensor([0, 9]))

            assert logits.isfinite().all()

    def test_checks_come_first(self, compiled_llama):
        """Inputs are validated first: a program would read beyond a narrow input."""
        with pytest.raises(ValueError, match=r"as wide as one of \(1, 5\)"):
            compiled_llama.forward(torch.ones(2, 3, dtype=torch.int64), torch.tensor([0, 0]))


class TestTarget:
    """The target of a decoder."""

    def test_eager_compiles_nothing(self, tiny_model, monkeypatch):
        """Even if there is a compiler."""
        monkeypatch.setattr("decodekit.neuron_backend.targets.cpu.aoti.compile_package", None)

        decoder = compile_decoder(tiny_model("llama"), max_length=16, widths=(1,), target="eager")

        assert (decoder.target, decoder.compiled) == ("eager", False)

    @pytest.mark.parametrize("tool", ["CXX", "AR"])
    def test_auto_is_eager_without_a_compiler(self, tool, tiny_model, monkeypatch):
        """Or without an archiver; the decoder's target says so."""
        monkeypatch.setenv(tool, "no-such-program")

        assert compile_decoder(tiny_model("llama"), max_length=16, widths=(1,)).target == "eager"

    def test_cpu_without_a_compiler_is_an_error(self, tiny_model, monkeypatch):
        """An explicit target is never replaced by another."""
        monkeypatch.setenv("CXX", "no-such-compiler")

        with pytest.raises(ValueError, match=r"needs a C\+\+ compiler"):
            compile_decoder(tiny_model("llama"), target="cpu")

    def test_unknown_targets_are_refused(self, tiny_model):
        """The error lists the targets."""
        with pytest.raises(
            ValueError, match=r"'target' must be one of auto, cpu, cuda, eager, neuron, .*: got 'tpu'"
        ):
            compile_decoder(tiny_model("llama"), target="tpu")


def test_a_path_is_loaded(tiny_model, tmp_path, greedy):
    """In the dtype of the checkpoint, or the given one."""
    tiny_model("qwen2").save_pretrained(tmp_path)
    expected = greedy(StaticDecoder(tiny_model("qwen2"), max_length=32, widths=(1, 4)), [[3, 4, 5]], 16)

    decoder = compile_decoder(tmp_path, max_length=32, widths=(1, 4), target="eager")
    half = compile_decoder(str(tmp_path), max_length=32, widths=(1, 4), target="eager", dtype="bfloat16")

    assert expected == greedy(decoder, [[3, 4, 5]], 16)
    assert torch.bfloat16 == half.step.model.dtype


def test_importing_does_not_import_the_compiler():
    """Importing the package does not import Inductor, which is slow."""
    code = """
        import sys
        import decodekit.neuron_backend
        assert "torch._inductor.compile_fx" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=Path(os.sep))


@pytest.mark.parametrize("target", [None, 5, NativeTarget], ids=str)
def test_a_wrong_target_is_refused_before_anything_is_loaded(target):
    """A target class, too; the model is not looked for."""
    with pytest.raises(TypeError, match="'target' must be a target such as NativeTarget"):
        compile_decoder("no such model", target=target)


@pytest.mark.parametrize("name", ["widths", "spans", "tree_widths"])
def test_one_number_is_no_sequence(name, tiny_model):
    """The message names the argument."""
    with pytest.raises(TypeError, match=f"'{name}' must be a sequence of whole numbers: got 4"):
        compile_decoder(tiny_model("llama"), **{"max_length": 8, "widths": (1,), name: 4}, target="eager")


def test_tree_widths_may_be_an_iterator(tiny_model):
    """Even though they are iterated several times."""
    decoder = compile_decoder(
        tiny_model("llama"), max_length=8, widths=(1,), tree_widths=iter((3,)), target="eager"
    )

    assert decoder.tree_widths == (3,)


@pytest.mark.parametrize(
    ("max_length", "widths"), [(8, (1, 5, 8)), (100, (1, 5, 100)), (3, (1, 3)), (1, (1,))]
)
def test_default_widths_fit(max_length, widths, tiny_model):
    """None exceeds max_length."""
    assert widths == compile_decoder(tiny_model("llama"), max_length=max_length, target="eager").shape.widths
    assert widths == StaticDecoder(tiny_model("llama"), max_length=max_length).shape.widths


@pytest.fixture
def no_model(tmp_path):
    """A folder that looks like one with a model but cannot be loaded."""
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


class TestBeforeLoading:
    """Errors that do not depend on the model are raised before it is loaded, which may take minutes."""

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("cpu", r"target 'cpu' needs a C\+\+ compiler"),
            ("neuron-native", "target 'neuron-native' needs TorchNeuron and a Neuron core"),
            ("neuron-traced", r"target 'neuron-traced' needs torch-neuronx 2\.9"),
            ("neuron", "target 'neuron' needs the packages of AWS Neuron"),
        ],
    )
    def test_what_a_target_needs(self, target, message, no_model, monkeypatch):
        """A compiler, packages, a device."""
        monkeypatch.setenv("CXX", "no-such-compiler")

        with pytest.raises(ValueError, match=message):
            compile_decoder(no_model, target=target)

    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            ({"processors": Greedy()}, r"'processors' must process logits.*: got the sampler Greedy"),
            (
                {"processors": TopK(3) | Sample(seed=0)},
                r"'processors' must process logits.*: got the sampler Sam",
            ),
            ({"sampler": TopK(3)}, r"'sampler' must choose, such as Greedy\(\): got the processor TopK"),
            ({"sampler": TopK(3) | TopP(0.9)}, "'sampler' must choose.*: got the processor Chain"),
            ({"processors": MaxNewTokens(3)}, "'processors' must be no stop condition: got MaxNewTokens"),
            ({"sampler": MaxNewTokens(3)}, "'sampler' must be no stop condition: got MaxNewTokens"),
            ({"processors": TopK}, "'processors' must be an instance: got the class TopK"),
            ({"sampler": Greedy}, "'sampler' must be an instance: got the class Greedy"),
            ({"processors": [TopK(3)]}, r"'processors' must be callable \(join several with \|\): got"),
            ({"sampler": 7}, "'sampler' must be callable: got 7"),
            ({"processors": MinLengthLogitsProcessor(3, 2)}, "wrap Hugging Face's in"),
        ],
    )
    def test_parts_of_the_wrong_kind(self, parts, message, no_model):
        """Or processors and sampler swapped."""
        with pytest.raises(TypeError, match=message):
            compile_decoder(no_model, target="eager", **parts)

    @pytest.mark.parametrize("chain", [Temperature([0.5, 0.7, 1.0]), TopK(5) | Temperature([0.5, 0.7, 1.0])])
    def test_parameters_of_other_rows(self, chain, no_model):
        """Per-row parameters have one value per row of the batch."""
        with pytest.raises(
            ValueError, match="'temperature' of Temperature must have one value per row, 2: got 3"
        ):
            compile_decoder(no_model, batch_size=2, target="eager", processors=chain)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"max_length": 256}, "'max_length' must be <= 128, the model's positions: got 256"),
            ({"batch_size": 0}, "'batch_size' must be an integer >= 1: got 0"),
            ({"widths": (4, 2)}, r"'widths' must be ascending, each once, and at least one: got \(4, 2\)"),
            ({"max_length": 8, "widths": (1, 9)}, "'widths' must be <= max_length = 8"),
            ({"scored_width": 3}, r"'scored_width' must be one of \(1, 5, 128\): got 3"),
            ({"max_length": 8, "tree_widths": (9,)}, "'tree_widths' must be <= max_length = 8"),
            ({"spans": (16, 32)}, "'spans' must be ascending and end with max_length = 128"),
            (
                {"batch_size": 2, "row_widths": (64,)},
                r"'row_widths' must be ascending, and of the widths \(1, 5, 128\)",
            ),
            ({"weights": "int5"}, "'weights' must be one of .*: got 'int5'"),
            ({"weights": "int8", "tp_degree": 2}, "'weights' must be None with tp_degree > 1: got 'int8'"),
        ],
    )
    def test_shapes_and_formats(self, options, message, tiny_model, tmp_path, monkeypatch):
        """The config says how many positions there are."""
        tiny_model("llama").config.save_pretrained(tmp_path)
        monkeypatch.setattr("decodekit.neuron_backend.serialization.saved_model.load_model", None)

        with pytest.raises(ValueError, match=message):
            compile_decoder(tmp_path, target="eager", **options)

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            (
                Phi3Config(
                    max_position_embeddings=256,
                    original_max_position_embeddings=40,
                    rope_parameters={
                        "rope_type": "longrope",
                        "rope_theta": 1e4,
                        "short_factor": [1.0] * 48,
                        "long_factor": [2.0] * 48,
                        "original_max_position_embeddings": 40,
                    },
                ),
                "Mine is not supported: .* 'max_length' must be <= 40: got 64",
            ),
            (Qwen3NextConfig(num_hidden_layers=4), "Mine is not supported: .*linear_attention"),
        ],
        ids=["longrope", "linear attention"],
    )
    def test_architectures_that_the_config_tells(self, config, message, tmp_path, monkeypatch):
        """Before weights are loaded."""
        config.architectures = ["Mine"]
        config.save_pretrained(tmp_path)
        monkeypatch.setattr("decodekit.neuron_backend.serialization.saved_model.load_model", None)

        with pytest.raises(UnsupportedArchitecture, match=message):
            compile_decoder(tmp_path, target="eager", max_length=64, widths=(1, 5))

    def test_the_loaded_model_is_gone_when_programs_are_compiled(self, tiny_model, tmp_path, monkeypatch):
        """Weights that were fused or quantised would be in memory twice."""
        tiny_model("llama").save_pretrained(tmp_path)
        loaded, alive = [], []

        def load(*args, **options):
            model = load_model(*args, **options)
            loaded.append(weakref.ref(model))
            return model

        def compiled(decoder, *args):
            gc.collect()
            alive.append(loaded[0]() is not None)

        monkeypatch.setattr("decodekit.neuron_backend.serialization.saved_model.load_model", load)
        monkeypatch.setattr(CompiledDecoder, "compile", compiled)
        compile_decoder(tmp_path, target="eager", max_length=64, weights="int8")

        assert [False] == alive

    def test_parameters_of_as_many_rows_are_accepted(self, tiny_model):
        """And user-defined parts are not checked."""
        chain = Temperature([0.5, 0.7]) | (lambda logits, history: logits)

        compile_decoder(
            tiny_model("llama"),
            batch_size=2,
            max_length=8,
            target="eager",
            processors=chain,
            sampler=lambda logits, history: logits.argmax(dim=-1),
        )


class TestModel:
    """Validation of the model argument."""

    @pytest.mark.parametrize("model", [None, 3, ["path"], PreTrainedModel], ids=str)
    def test_of_another_type_is_refused(self, model):
        """A model class, too."""
        with pytest.raises(
            TypeError, match="'model' must be a Hugging Face causal LM, or the path or hub id"
        ):
            compile_decoder(model, target="eager")

    @pytest.mark.parametrize("path", ["no/such/folder", "./model", "/no/such", "a model"])
    def test_a_missing_folder_is_reported_as_such(self, path):
        """And not as an invalid repository id, as the hub's client reports it."""
        with pytest.raises(
            FileNotFoundError,
            match=f"'model' must be a folder.*: got '{path}'.*neither: there is no such fold",
        ):
            compile_decoder(path, target="eager")

    def test_an_id_that_the_hub_does_not_have(self):
        """The message covers both a folder and a hub id."""
        with pytest.raises(FileNotFoundError, match="got 'some/model'; no folder is called so, and the hub"):
            compile_decoder("some/model", target="eager")

    def test_a_folder_without_a_model(self, tmp_path):
        """Parent folders are not searched."""
        with pytest.raises(FileNotFoundError, match=r"'model' must be a folder with a config\.json: got '"):
            compile_decoder(tmp_path, target="eager")

    def test_a_file(self, no_model):
        """Such as a config, or weights."""
        with pytest.raises(
            FileNotFoundError, match="'model' must be a folder, a GGUF file or a hub id: got '"
        ):
            compile_decoder(no_model / "config.json", target="eager")


@pytest.mark.parametrize(
    "load", [partial(compile_decoder, target="eager"), load_tokenizer, partial(facts_of_config, dtype=None)]
)
def test_code_of_a_repository_is_not_run(load, tmp_path, monkeypatch):
    """Nor is it asked whether it may be."""
    asked = []
    monkeypatch.setattr("builtins.input", lambda *text: asked.append(text) or "n")
    (tmp_path / "own.py").write_text("raise SystemExit('it was run')")
    own = {
        "AutoConfig": "own.Config",
        "AutoModelForCausalLM": "own.Model",
        "AutoTokenizer": ["own.Tokens", None],
    }
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps({"model_type": "own", "auto_map": own}))

    with pytest.raises(
        ValueError, match="must need no code of its own, which is not run: load it with transformers"
    ):
        load(tmp_path)
    assert [] == asked
