import copy
import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertLMHeadModel, Ernie4_5_MoeConfig

from decodekit.decoding.file_digest import file_sha256
from decodekit.neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from decodekit.neuron_backend.artifacts import file_hashes
from decodekit.neuron_backend.artifacts.manifest import Manifest


def script(decoder):
    """Logits of a prefill, a rewind and a step."""
    generator = torch.Generator().manual_seed(1)
    batch, widths = decoder.shape.batch_size, decoder.shape.widths
    return [
        decoder.forward(
            torch.randint(61, (batch, width), generator=generator), torch.full((batch,), start)
        ).clone()
        for start, width in ((0, widths[-1]), (widths[-1], widths[-1]), (2, widths[0]), (3, widths[0]))
    ]


def rewrite(folder, **changes):
    """Change facts of decoder.json and make it consistent again, as an attacker would."""
    manifest = Manifest.read(folder)
    files = {name: file_sha256(folder / name) for name in manifest.files}
    facts = {name: getattr(manifest, name) for name in Manifest.__slots__ if not name.startswith("__")}
    Manifest(**{**facts, "files": files, **changes}).write(folder)


@pytest.fixture(scope="module")
def compiled(tiny_model):
    """A decoder with one program, of width 2, so that compiling it again is quick."""
    return compile_decoder(tiny_model("llama"), max_length=32, widths=(2,), target="cpu")


@pytest.fixture
def saved(compiled, tmp_path):
    compiled.save(tmp_path / "decoder")
    return tmp_path / "decoder"


@pytest.fixture
def no_compiler(monkeypatch):
    """Compiling fails."""
    monkeypatch.setattr("decodekit.neuron_backend.targets.cpu.aoti.compile_package", None)
    monkeypatch.setattr(torch.export, "export", None)


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A machine that has compiled nothing."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "another machine"))


class TestRoundTrip:
    """Saving and loading."""

    @pytest.mark.usefixtures("no_compiler")
    def test_gives_the_same_bits_and_compiles_nothing(self, compiled, saved):
        """A second start only loads."""
        loaded = load_decoder(saved)

        assert ("cpu", False, compiled.shape) == (loaded.target, loaded.compiled, loaded.shape)
        assert all(map(torch.equal, script(compiled), script(loaded)))

    @pytest.mark.parametrize("name", ["opt", "mixtral", "gemma2", "deepseek_v3"])
    @pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
    def test_of_an_eager_decoder_gives_the_same_bits(self, name, dtype, tiny_model, tmp_path):
        """Tied, expert and windowed models, in dtypes that are not their config's."""
        decoder = compile_decoder(
            tiny_model(name), batch_size=2, max_length=32, widths=(1, 4), target="eager", dtype=dtype
        )
        decoder.save(tmp_path / "decoder")

        assert all(map(torch.equal, script(decoder), script(load_decoder(tmp_path / "decoder"))))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_of_a_model_converted_as_a_whole_gives_the_same_bits(self, dtype, tiny_model, tmp_path):
        """Its router too, which transformers loads in float32."""
        model = tiny_model("deepseek_v3", dtype)
        decoder = compile_decoder(model, batch_size=2, max_length=32, widths=(1, 4), target="eager")
        decoder.save(tmp_path / "decoder")

        loaded = load_decoder(tmp_path / "decoder")

        assert dtype == loaded.step.model.model.layers[1].mlp.gate.weight.dtype
        assert all(map(torch.equal, script(decoder), script(loaded)))

    def test_of_a_router_that_is_renamed_in_the_file_gives_the_same_bits(self, tmp_path):
        """Ernie 4.5's, converted as a whole: transformers saves it under another name than its module's."""
        config = Ernie4_5_MoeConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            moe_intermediate_size=16,
            moe_num_experts=4,
            moe_k=2,
            moe_num_shared_experts=1,
            moe_layer_end_index=1,
            max_position_embeddings=64,
        )
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
        decoder = compile_decoder(model, max_length=32, widths=(1, 4), target="eager")
        decoder.save(tmp_path / "decoder")

        loaded = load_decoder(tmp_path / "decoder")

        names = {name for name, _ in loaded.step.model.named_parameters()}
        assert any(name.endswith("moe_statics.e_score_correction_bias") for name in names)
        assert {torch.bfloat16} == {each.dtype for each in loaded.step.model.parameters()}
        ids, start = torch.arange(4)[None], torch.tensor([0])
        assert torch.equal(decoder.forward(ids, start), loaded.forward(ids, start))

    @pytest.mark.slow
    def test_of_a_compiled_router_gives_the_same_bits(self, tiny_model, tmp_path):
        """Float32 in a program of bfloat16, as in transformers."""
        # All experts are chosen: between two, rounding in bfloat16 would decide.
        config = copy.deepcopy(tiny_model("deepseek_v3").config)
        config.num_experts_per_tok, config.n_group = config.n_routed_experts, 1
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config).eval()
        decoder = compile_decoder(model, max_length=32, widths=(2,), target="cpu", dtype="bfloat16")
        decoder.save(tmp_path / "decoder")

        loaded = load_decoder(tmp_path / "decoder")

        assert not loaded.compiled
        assert all(map(torch.equal, script(decoder), script(loaded)))
        assert torch.float32 == loaded.step.model.model.layers[1].mlp.gate.e_score_correction_bias.dtype

    def test_can_be_saved_again(self, saved, tmp_path):
        """A loaded decoder keeps its programs."""
        load_decoder(saved).save(tmp_path / "copy")

        assert (saved / "programs/width_2.zip").read_bytes() == (
            tmp_path / "copy/programs/width_2.zip"
        ).read_bytes()

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["llama", "gemma2"])
    def test_of_several_programs(self, name, request, tmp_path):
        """Two widths over one cache, one of them scoring a single column."""
        decoder = request.getfixturevalue(f"compiled_{name}")
        decoder.save(tmp_path / "decoder")

        assert all(map(torch.equal, script(decoder), script(load_decoder(tmp_path / "decoder"))))


class TestTrust:
    """Which native code is run, and which compiled again."""

    @pytest.mark.usefixtures("elsewhere")
    def test_programs_of_others_are_compiled_again(self, compiled, saved):
        """From the weights; the folder's native code is not loaded."""
        (saved / "programs/width_2.zip").write_bytes(b"not to be run")
        rewrite(saved)

        told = []

        loaded = load_decoder(saved, progress=told.append)

        assert loaded.compiled
        again = [stage for stage in told if "the saved programs were compiled elsewhere" in stage.name]
        assert [stage.note for stage in again] == ["", "a copy saved here loads without compiling"]
        for expected, found in zip(script(compiled), script(loaded), strict=True):
            torch.testing.assert_close(expected, found, atol=1e-5, rtol=1e-5)

    @pytest.mark.usefixtures("elsewhere")
    def test_without_a_compiler_they_are_refused(self, saved, monkeypatch):
        """Neither run nor silently replaced by something slower."""
        monkeypatch.setenv("CXX", "no-such-compiler")

        with pytest.raises(ValueError, match=r"needs a C\+\+ compiler"):
            load_decoder(saved)

    @pytest.mark.usefixtures("elsewhere", "no_compiler")
    def test_can_be_given(self, compiled, saved):
        """trust_programs runs the folder's programs."""
        loaded = load_decoder(saved, trust_programs=True)

        assert not loaded.compiled
        assert all(map(torch.equal, script(compiled), script(loaded)))


class TestMismatch:
    """Folders that differ from what was saved."""

    def test_a_changed_file_is_refused(self, saved):
        """Whatever its kind, and even with trust_programs."""
        for name in Manifest.read(saved).files:
            before = (saved / name).read_bytes()
            (saved / name).write_bytes(before + b" ")

            with pytest.raises(ValueError, match=f"got a changed .*{name}"):
                load_decoder(saved, trust_programs=True)

            (saved / name).write_bytes(before)

    def test_a_missing_file_is_refused(self, saved):
        """The error names it."""
        (saved / "programs/width_2.zip").unlink()

        with pytest.raises(ValueError, match=r"got no .*width_2\.zip"):
            load_decoder(saved)

    def test_an_edited_shape_is_refused(self, saved):
        """decoder.json has a checksum."""
        facts = json.loads((saved / "decoder.json").read_text())
        facts["shape"]["max_length"] = 64
        (saved / "decoder.json").write_text(json.dumps(facts))

        with pytest.raises(ValueError, match="checksum differs"):
            load_decoder(saved)

    @pytest.mark.parametrize("change", [{"max_length": 64}, {"batch_size": 2}])
    @pytest.mark.parametrize("trusted", [True, False])
    def test_a_shape_that_the_programs_were_not_compiled_for_is_refused(self, change, trusted, saved):
        """Even with a consistent checksum: the program carries a fingerprint of what it fits."""
        shape = Manifest.read(saved).shape
        rewrite(
            saved,
            shape=type(shape)(**{**{n: getattr(shape, n) for n in shape.__slots__ if n[0] != "_"}, **change}),
            spans=[change.get("max_length", 32)],
        )

        with pytest.raises(ValueError, match="a program must have been compiled for the decoder's shape"):
            load_decoder(saved, trust_programs=trusted)

    def test_a_shape_that_no_decoder_has_is_refused(self, saved):
        """Before the weights are read."""
        shape = Manifest.read(saved).shape
        object.__setattr__(shape, "scored_width", 1)
        rewrite(saved, shape=shape)

        with pytest.raises(
            ValueError, match=r"decoder\.json must have .*'scored_width' must be one of \(2,\)"
        ):
            load_decoder(saved)

    def test_a_quantised_model_of_another_major_version_is_refused(self, tiny_model, tmp_path):
        """Also where it is to be compiled again."""
        compile_decoder(tiny_model("llama"), max_length=32, widths=(1,), target="eager", weights="int8").save(
            tmp_path
        )
        rewrite(tmp_path, versions={"torch": torch.__version__, "transformers": "3.5.1"})

        with pytest.raises(ValueError, match=r"that saved it, 3\.5\.1: got"):
            compile_decoder(tmp_path, max_length=32, widths=(1,), target="eager")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"versions": {"torch": "1.0"}}, r"by the torch that compiled them, 1\.0: got"),
            (
                {"versions": {"torch": torch.__version__, "transformers": "3.5.1"}},
                r"with the major version of transformers that saved it, 3\.5\.1: got",
            ),
            ({"cpu_family": "pdp11"}, "on a processor like the one they were compiled on, pdp11"),
            ({"instruction_sets": ["avx9000"]}, "without avx9000"),
            ({"dtype": "float16"}, r"that of the weights, float32: got float16"),
        ],
    )
    def test_of_versions_or_processor_is_refused(self, changes, message, saved):
        """The error says what the programs need and what the machine has."""
        rewrite(saved, **changes)

        with pytest.raises(ValueError, match=message):
            load_decoder(saved)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (None, "must hold a saved decoder"),
            ("{", "must be JSON"),
            ('{"format": 9}', "of format 4: got 9"),
            ('{"format": 3}', r"got 3 in .*older release of decodekit; compile .* with compile_decoder\(\)"),
        ],
    )
    def test_a_folder_that_is_no_saved_decoder_is_refused(self, text, message, tmp_path):
        """A missing or broken decoder.json, or one of another format."""
        if text is not None:
            (tmp_path / "decoder.json").write_text(text)

        with pytest.raises(ValueError, match=message):
            load_decoder(tmp_path)


def test_pickles_are_not_read(saved, tmp_path):
    """A folder with its weights in a pickle is refused as one without weights."""
    shutil.move(saved / "model.safetensors", saved / "pytorch_model.bin")
    manifest = Manifest.read(saved)
    files = {
        name.replace("model.safetensors", "pytorch_model.bin"): value
        for name, value in manifest.files.items()
    }
    facts = {name: getattr(manifest, name) for name in Manifest.__slots__ if not name.startswith("__")}
    Manifest(**{**facts, "files": files}).write(saved)

    with pytest.raises(OSError, match="safetensors"):
        load_decoder(saved)


@pytest.mark.parametrize(
    ("name", "value"), [("trust_programs", "no"), ("trust_programs", 1), ("target", "cpu")]
)
def test_loading_refuses_what_is_of_another_type(name, value, tmp_path):
    """A string such as "no" does not count as True; checked before the folder is read."""
    with pytest.raises(TypeError, match=f"'{name}' must be"):
        load_decoder(tmp_path, **{name: value})


def test_a_folder_that_is_replaced_while_it_is_loaded(tiny_model, tmp_path, monkeypatch):
    """After its hashes were checked: the new one is loaded, not the old facts with the new weights."""
    model = copy.deepcopy(tiny_model("llama"))
    CompiledDecoder(model, max_length=16, widths=(1,)).save(tmp_path / "decoder")
    other = CompiledDecoder(tiny_model("llama"), max_length=32, widths=(1,))
    check, replaced = file_hashes.check_files, []

    def then_replaced(folder, hashes):
        check(folder, hashes)
        if not replaced:
            replaced.append(folder)
            other.save(folder)

    monkeypatch.setattr(file_hashes, "check_files", then_replaced)

    assert other.shape == load_decoder(tmp_path / "decoder").shape


def test_a_class_that_its_config_does_not_make_is_refused(tiny_model, tmp_path):
    """A subclass of the user's would be loaded as the stock model, which may compute something else."""
    stock = tiny_model("llama")

    class Own(type(stock)):
        """Of the user's."""

    model = copy.deepcopy(stock)
    model.__class__ = Own
    for weights in (None, "int8"):
        folder = tmp_path / str(weights)
        compile_decoder(model, target="eager", max_length=32, widths=(1, 4), weights=weights).save(folder)
        with pytest.raises(ValueError, match="which may compute something else: got Own"):
            load_decoder(folder)


def test_a_bias_that_is_shared_is_loaded_beside_quantised_weights(tmp_path):
    """BERT's head and its predictions share one; their matrices are apart."""
    config = BertConfig(
        is_decoder=True,
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    model = BertLMHeadModel(config).eval()
    decoder = compile_decoder(model, target="eager", weights="int8", max_length=32, widths=(1, 4))
    decoder.save(tmp_path / "saved")

    expected, found = script(decoder), script(load_decoder(tmp_path / "saved"))
    assert all(map(torch.equal, expected, found))


@pytest.mark.parametrize("target", ["eager", "cpu"])
@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_a_head_that_is_or_is_not_the_embeddings(tiny_model, tmp_path, monkeypatch, tied, said, target):
    """Whatever the config says: a loaded decoder has the saved one's, where its programs are lost as well."""
    model = copy.deepcopy(tiny_model("llama"))
    model.config.tie_word_embeddings = said
    weight = model.model.embed_tokens.weight
    model.lm_head.weight = weight if tied else torch.nn.Parameter(torch.randn_like(weight))
    decoder = compile_decoder(model, max_length=16, widths=(1, 4), target=target)
    expected = script(decoder)
    decoder.save(tmp_path / "decoder")
    loaded = load_decoder(tmp_path / "decoder")
    loaded.save(tmp_path / "again")
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "cache"))

    layers = model.config.num_hidden_layers

    assert said is model.config.tie_word_embeddings
    whole = loaded.early_exit(layers, widths=(1, 4), scored_width=4)
    for found in (loaded, load_decoder(tmp_path / "again"), whole):
        torch.testing.assert_close(script(found), expected)


def test_files_that_lack_weights(tiny_model, tmp_path):
    """Transformers would initialise them at random, another way each time."""
    model = tiny_model("llama")
    state = model.state_dict()
    del state["model.layers.1.mlp.down_proj.weight"]
    model.save_pretrained(tmp_path / "model", state_dict=state)

    with pytest.raises(ValueError, match=r"lacks 1 of its weights, such as model\.layers\.1\.mlp\.down_proj"):
        compile_decoder(tmp_path / "model", max_length=16, widths=(1,), target="eager")
