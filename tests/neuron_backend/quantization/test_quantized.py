"""Decoders with quantised linear layers."""

import copy

import pytest
import torch
import transformers
from safetensors import safe_open

from decodekit.decoding.file_digest import file_sha256
from decodekit.neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from decodekit.neuron_backend.artifacts.manifest import Manifest
from decodekit.neuron_backend.quantization.int4_linear import Int4Linear
from decodekit.neuron_backend.quantization.int8_linear import Int8Linear
from decodekit.neuron_backend.quantization.quantized import Weights
from decodekit.testing import check_decoder

NAMES = ["llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "opt", "phi", "mixtral", "gemma2"]
ROWS = [list(range(1, 31)), list(range(20, 55))]


def decoder(model, **changes):
    """An eager decoder of two rows."""
    return CompiledDecoder(
        model, **{"batch_size": 2, "max_length": 64, "widths": (1, 5, 24), "weights": "int8", **changes}
    )


def widened(model, quantised):
    """The stock model with the dequantized weights of *quantised*."""
    stock = copy.deepcopy(model)
    for name, layer in quantised.named_modules():
        if isinstance(layer, Int8Linear | Int4Linear):
            place = stock.get_submodule(name)
            weight = layer.dequantized(model.dtype)
            transposed = isinstance(place, transformers.pytorch_utils.Conv1D)
            place.weight = torch.nn.Parameter(weight.T if transposed else weight)
    return stock


@pytest.mark.parametrize("weights", ["int8", "int4", "float8"])
@pytest.mark.parametrize("name", NAMES)
def test_is_the_stock_model_of_the_rounded_weights(name, weights, tiny_model, prefill):
    """Beyond the window, for rows of different lengths, with biases, tied heads, and GPT-2's Conv1D."""
    model = tiny_model(name)
    made = decoder(model, weights=weights)
    stock = widened(model, made.step.model)
    with torch.no_grad():
        expected = torch.stack([stock(torch.tensor([row])).logits[0, -1] for row in ROWS])
        before = torch.stack([model(torch.tensor([row])).logits[0, -1] for row in ROWS])

    found = prefill(made, ROWS, 5).clone()

    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (found - before).abs().max() > 1e-3
    torch.testing.assert_close(prefill(made, ROWS, 24), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize(("dtype", "rounding"), [("bfloat16", 0.3), ("float16", 0.03), ("float64", 1e-6)])
def test_every_dtype_is_served(dtype, rounding, weights, tiny_model, prefill):
    """Activations and scales have the decoder's dtype; logits are those of its dequantized weights."""
    made = decoder(tiny_model("qwen2"), dtype=dtype, weights=weights)
    stock = widened(tiny_model("qwen2", torch.float64), made.step.model)
    kinds = {str(tensor.dtype) for tensor in made.step.model.state_dict().values()}
    with torch.no_grad():
        expected = torch.stack([stock(torch.tensor([row])).logits[0, -1] for row in ROWS])

    assert {f"torch.{dtype}", "torch.int8"} | ({"torch.uint8"} if weights == "int4" else set()) == kinds
    for width in (5, 24):
        difference = prefill(made, ROWS, width).double() - expected
        assert difference.abs().max() <= rounding * expected.abs().max()


def test_rewinds_spans_and_trees(tiny_model):
    """The contract, as for any decoder."""
    check_decoder(decoder(tiny_model("gemma2"), spans=(16, 32, 64), tree_widths=(4,)))


class TestWhatBecomesOfLayers:
    """Which are quantised, and which are not."""

    @pytest.mark.parametrize("name", NAMES)
    def test_int8_takes_every_linear_layer(self, name, tiny_model):
        """The other matrices are embeddings and experts."""
        model = tiny_model(name)
        linear = {
            key
            for key, module in model.named_modules()
            if isinstance(module, torch.nn.Linear | transformers.pytorch_utils.Conv1D)
        }
        report = decoder(model).weights

        assert linear == set(report.layers)
        assert not any("inputs" in reason for reason in report.kept.values())

    def test_experts_and_routers_stay(self, tiny_model):
        """They are stacked matrices, not linear layers, as the report says."""
        report = decoder(tiny_model("mixtral")).weights

        assert (
            "of a MixtralExperts, which is no linear layer"
            == report.kept["model.layers.0.mlp.experts.gate_up_proj"]
        )
        assert "an embedding" == report.kept["model.embed_tokens.weight"]
        assert "int8" == report.layers["model.layers.1.self_attn.q_proj"]
        assert {"int8"} == set(report.layers.values())

    def test_int4_leaves_what_makes_no_whole_groups(self, tiny_model):
        """48 inputs are not a multiple of 32; the head is int8."""
        report = decoder(tiny_model("llama"), weights="int4").weights

        assert "48 inputs are no multiple of 32" == report.kept["model.layers.0.mlp.down_proj.weight"]
        assert ("int4", "int8") == (report.layers["model.layers.0.mlp.up_proj"], report.layers["lm_head"])
        assert "12 layers int4, 1 layers int8, 3 matrices kept" in str(report)

    def test_a_tied_head_is_untied(self, tiny_model):
        """The embedding stays as it was, and so does the caller's model."""
        model = tiny_model("opt")
        made = decoder(model).step.model

        assert isinstance(made.lm_head, Int8Linear)
        assert made.get_input_embeddings().weight is model.get_input_embeddings().weight
        assert (True, False) == (model.config.tie_word_embeddings, made.config.tie_word_embeddings)
        assert isinstance(model.lm_head, torch.nn.Linear)

    @pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
    def test_the_callers_model_is_not_touched(self, name, tiny_model):
        """Neither its modules nor its weights."""
        model = copy.deepcopy(tiny_model(name)).train()
        modules = {key: type(module) for key, module in model.named_modules()}
        state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        decoder(model)

        assert model.training
        assert modules == {key: type(module) for key, module in model.named_modules()}
        assert all(torch.equal(state[key], tensor) for key, tensor in model.state_dict().items())

    def test_memory_is_what_the_formats_promise(self):
        """One byte per weight and a scale per row; half a byte and two numbers per 32 weights."""
        config = transformers.LlamaConfig(
            vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2
        )
        model = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
        bytes_of = {
            weights: decoder(model, weights=weights).weights.bytes for weights in (None, "int8", "int4")
        }
        linear, rows, head = 4 * 64 * 64 + 3 * 64 * 128, 4 * 64 + 2 * 128 + 64, 64 * 64
        others = bytes_of[None] - 2 * (linear + head)

        assert others + linear + 2 * rows + head + 2 * 64 == bytes_of["int8"]
        assert others + linear // 2 + 4 * linear // 32 + head + 2 * 64 == bytes_of["int4"]


class TestRefusal:
    """Before anything is changed."""

    @pytest.mark.parametrize("weights", ["int3", "fp8", 8, True, ""])
    @pytest.mark.parametrize("make", [decoder, compile_decoder])
    def test_of_a_format_that_there_is_not(self, make, weights, tiny_model):
        """The rule is named."""
        with pytest.raises(ValueError, match="'weights' must be one of int8, int4, float8 or None: got"):
            make(tiny_model("llama"), weights=weights)

    def test_of_weights_that_are_not_finite(self, tiny_model):
        """The layer is named."""
        model = copy.deepcopy(tiny_model("llama"))
        model.model.layers[1].mlp.up_proj.weight.data[3, 4] = torch.inf

        with pytest.raises(ValueError, match=r"must be finite .* in model\.layers\.1\.mlp\.up_proj"):
            decoder(model)

    def test_of_another_format_for_a_model_that_is_quantised(self, tiny_model, tmp_path):
        """int8 would quantise layers that int4 left: a mixture of both is refused."""
        mixed = decoder(tiny_model("llama"), weights="int4")
        mixed.save(tmp_path / "decoder")

        for model in (mixed.step.model, tmp_path / "decoder"):
            with pytest.raises(ValueError, match="None for a model that is quantised: got 'int8'"):
                compile_decoder(model, max_length=64, widths=(1,), weights="int8", target="eager")

    def test_of_a_model_that_is_quantised(self, tiny_model):
        """The option would have no effect, and is not ignored."""
        with pytest.raises(ValueError, match="'weights' must be None for a model that is quantised"):
            decoder(decoder(tiny_model("llama")).step.model)


class TestFolder:
    """Saving and loading."""

    @pytest.mark.mostly_slow(every=4)
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("weights", ["int8", "int4"])
    def test_is_loaded_bit_for_bit(self, name, weights, tiny_model, prefill, tmp_path):
        """Logits, formats and bytes; a tied head, experts, windows."""
        made = decoder(tiny_model(name), weights=weights, dtype="bfloat16")
        made.save(tmp_path / "decoder")
        expected = prefill(made, ROWS, 5).clone()

        loaded = load_decoder(tmp_path / "decoder")

        assert torch.equal(expected, prefill(loaded, ROWS, 5))
        assert made.weights == loaded.weights
        assert made.step.model.generation_config == loaded.step.model.generation_config
        loaded.save(tmp_path / "again")
        assert (tmp_path / "again" / "weights.safetensors").read_bytes() == (
            tmp_path / "decoder" / "weights.safetensors"
        ).read_bytes()

    def test_can_be_compiled_again(self, tiny_model, prefill, tmp_path):
        """A decoder's folder can be compiled as a model, with its quantised weights."""
        made = decoder(tiny_model("opt"))
        made.save(tmp_path / "decoder")
        again = compile_decoder(
            tmp_path / "decoder", batch_size=2, max_length=64, widths=(1, 5), target="eager"
        )

        assert torch.equal(prefill(made, ROWS, 5).clone(), prefill(again, ROWS, 5))
        assert made.weights == again.weights

    def test_transformers_refuses_the_folder(self, tiny_model, tmp_path):
        """Rather than initialising random weights."""
        decoder(tiny_model("llama")).save(tmp_path / "decoder")

        with pytest.raises(OSError, match="no file named"):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "decoder")

    def test_a_changed_weight_is_refused(self, tiny_model, tmp_path):
        """By its hash."""
        decoder(tiny_model("llama")).save(tmp_path / "decoder")
        path = tmp_path / "decoder" / "weights.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")

        for load in (load_decoder, compile_decoder):
            with pytest.raises(ValueError, match="must be as they were saved"):
                load(tmp_path / "decoder")

    @pytest.mark.parametrize(
        ("layers", "message"),
        [
            ({"lm_head": "int3"}, "the format of lm_head must be one of int8, int4, float8: got 'int3'"),
            ({"model.norm": "int8"}, "must be a linear one of the model: got 'model.norm'"),
            ({"lm_head": "int8"}, "must hold the model's weights: got"),
        ],
    )
    def test_forged_formats_are_refused(self, layers, message, tiny_model, tmp_path):
        """Even with a recomputed checksum."""
        decoder(tiny_model("llama")).save(tmp_path)
        manifest = Manifest.read(tmp_path)
        files = {name: file_sha256(tmp_path / name) for name in manifest.files}
        facts = {name: getattr(manifest, name) for name in Manifest.__slots__ if not name.startswith("__")}
        Manifest(**{**facts, "files": files, "quantized": layers}).write(tmp_path)

        with pytest.raises(ValueError, match=message):
            load_decoder(tmp_path)

    def test_holds_integers(self, tiny_model, tmp_path):
        """One byte per weight on disk as well, and each tensor once."""
        made = decoder(tiny_model("opt"))
        made.save(tmp_path / "decoder")
        path = tmp_path / "decoder" / "weights.safetensors"

        with safe_open(path, "pt") as stored:
            assert torch.int8 == stored.get_tensor("lm_head.quantized").dtype
        assert path.stat().st_size < 1.4 * made.weights.bytes


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_an_early_exit_shares_the_integers(weights, tiny_model, prefill):
    """No layer is quantised twice; an exit after all layers equals the decoder."""
    made = decoder(tiny_model("gemma2"), weights=weights)
    exit_ = made.early_exit(1)
    pointers = {tensor.data_ptr() for tensor in made.step.model.state_dict().values()}

    assert pointers > {tensor.data_ptr() for tensor in exit_.step.model.state_dict().values()}
    assert set(exit_.weights.layers) < set(made.weights.layers)
    whole = made.early_exit(2, widths=(5,))
    assert torch.equal(prefill(made, ROWS, 5).clone(), prefill(whole, ROWS, 5))


def test_weights_that_are_floating_are_reported_too(llama):
    """No layer is quantised, and the bytes are those of the state."""
    report = llama.weights

    assert ({}, 4 * llama.step.model.num_parameters()) == (report.layers, report.bytes)
    assert Weights.of(llama.step.model) == report


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "dtype"), [("int8", "float32"), ("int4", "bfloat16")])
def test_compiled_programs_are_saved_and_loaded(weights, dtype, prefill, tmp_path):
    """
    A narrow and a wide width, which use different matmuls.

    Compilation compares both with the portable products; this test with an eager decoder of the same weights,
    and bit for bit after loading.
    """
    config = transformers.Qwen2Config(
        vocab_size=61,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    options = {"max_length": 64, "widths": (2, 20), "dtype": dtype, "weights": weights}
    compiled = compile_decoder(model, target="cpu", **options)
    eager = compile_decoder(model, target="eager", **options)
    compiled.save(tmp_path / "decoder")
    loaded = load_decoder(tmp_path / "decoder")

    assert ("cpu", False) == (loaded.target, loaded.compiled)
    for width in options["widths"]:
        found = prefill(compiled, ROWS[:1], width).clone()
        rounding = (0.2 if dtype == "bfloat16" else 1e-4) * found.abs().max()
        assert (found - prefill(eager, ROWS[:1], width)).abs().max() <= rounding
        assert torch.equal(found, prefill(loaded, ROWS[:1], width))
    # Of the CPU's layout of the weights, or of rows again.
    for other in (
        compile_decoder(tmp_path / "decoder", target="eager", max_length=64, widths=(2, 20)),
        loaded.early_exit(1, target="eager", widths=(2, 20)),
    ):
        difference = prefill(eager, ROWS[:1], 20).clone() - prefill(other, ROWS[:1], 20)
        assert difference.abs().max() <= rounding
        assert other.weights.layers == eager.weights.layers
