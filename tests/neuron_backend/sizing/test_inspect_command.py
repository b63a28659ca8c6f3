import json

import pytest
import torch
import transformers

from decodekit.__main__ import main
from decodekit.decoding.protocols import DecoderShape
from decodekit.neuron_backend import compile_decoder
from decodekit.neuron_backend.sizing.instances import GIB, instance_named
from decodekit.neuron_backend.sizing.model_facts import facts_of_config
from decodekit.neuron_backend.sizing.sizing import Sizing
from decodekit.neuron_backend.static_decoder import StaticDecoder

from ...hub_stand_in import running_hub
from ..models.test_gguf_file import made, write_gguf


@pytest.fixture
def config(tiny_model, tmp_path):
    """A config.json without weights, of a Llama with four heads, two of keys and values."""
    tiny_model("llama").config.save_pretrained(tmp_path)
    return str(tmp_path / "config.json")


def inspect(capsys, *arguments):
    """The command's JSON output."""
    assert 0 == main(["inspect", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    """The command's error message."""
    assert 1 == main(["inspect", *arguments])
    return capsys.readouterr().err


def test_reports_what_a_decoder_would_have(config, tiny_model, capsys):
    """Sizes, widths and spans of the decoder that compile_decoder would make."""
    report = inspect(capsys, config, "--batch", "3", "--length", "120", "--instance", "inf2.xlarge")
    decoder = StaticDecoder(tiny_model("llama"), batch_size=3, max_length=120, widths=(1, 5))

    assert tiny_model("llama").num_parameters() == report["parameters"]
    assert sum(tensor.nbytes for tensor in decoder.cache.states) == report["cache_bytes"]
    assert (3, 120) == (report["batch_size"], report["max_length"])
    assert ([1, 5, 120], list(decoder.spans)) == (report["widths"], report["spans"])
    assert (2, 4, 2) == (report["layers"], report["heads"], report["key_value_heads"])


def test_a_saved_decoder_has_its_own_sizes(tiny_model, tmp_path, capsys):
    """Those that are given take their place."""
    options = {"batch_size": 3, "max_length": 96, "widths": (1, 7), "weights": "int8", "target": "eager"}
    compile_decoder(tiny_model("llama"), **options).save(tmp_path / "saved")
    report = inspect(capsys, str(tmp_path / "saved"))
    other = inspect(capsys, str(tmp_path / "saved"), "--batch-size", "2", "--max-length", "64")

    assert (3, 96, [1, 7], "int8") == tuple(
        report[name] for name in ("batch_size", "max_length", "widths", "weights")
    )
    assert (2, 64, [1, 5, 64]) == tuple(other[name] for name in ("batch_size", "max_length", "widths"))


def test_a_saved_decoder_on_the_hub_has_its_own_sizes(tiny_model, tmp_path, capsys, monkeypatch):
    """Of which the files that say so are downloaded, and no weights."""
    options = {"batch_size": 3, "max_length": 96, "widths": (1, 7), "weights": "int8", "target": "eager"}
    with running_hub(monkeypatch, tmp_path / "hub") as hub:
        compile_decoder(tiny_model("llama"), **options).push_to_hub("user/tiny")
        report = inspect(capsys, "user/tiny")

    assert (3, 96, [1, 7], "int8") == tuple(
        report[name] for name in ("batch_size", "max_length", "widths", "weights")
    )
    assert {"target": "eager", "kernels": {}} == report["saved"]
    assert {"config.json", "decoder.json"} == set(hub.downloads)


def test_a_gguf_file_of_16_bits(tmp_path, capsys):
    """In the dtype that it is loaded in."""
    pytest.importorskip("gguf")
    half = write_gguf(tmp_path / "half.gguf", made("llama"), "llama", dtype=torch.bfloat16)

    assert "bfloat16" == inspect(capsys, str(half))["dtype"]


def test_a_saved_decoder_with_trees(tiny_model, tmp_path, capsys):
    """With their scratch slots."""
    decoder = compile_decoder(tiny_model("llama"), tree_widths=(8,), max_length=96, target="eager")
    decoder.save(tmp_path / "saved")

    expected = sum(states.nbytes for states in decoder.cache.states)
    assert expected == inspect(capsys, str(tmp_path / "saved"))["cache_bytes"]


def test_a_gguf_file(tmp_path, capsys):
    """By its settings, without its weights."""
    pytest.importorskip("gguf")
    model = made("llama")
    report = inspect(capsys, str(write_gguf(tmp_path / "tiny.gguf", model, "llama")))

    assert (model.num_parameters(), 2, 4) == tuple(report[name] for name in ("parameters", "layers", "heads"))
    assert "there is no such file" in refused(capsys, str(tmp_path / "none.gguf"))


def test_the_default_length_is_the_models(config, capsys):
    """As for compile_decoder."""
    assert 128 == inspect(capsys, config, "--instance", "inf2.xlarge")["max_length"]


@pytest.mark.parametrize(
    ("arguments", "widths"),
    [
        (["--instance", "inf2.xlarge"], [1, 5, 128, 256, 512]),
        ([], [1, 5, 128]),
        (["--length", "100"], [1, 5, 100]),
        (["--widths", "2", "9"], [2, 9]),
        (["--instance", "inf2.xlarge", "--widths", "2", "9"], [2, 9]),
    ],
)
def test_widths_are_those_of_compile_decoder(arguments, widths, tmp_path, capsys, monkeypatch):
    """On Neuron, a prompt takes few forwards; or the given widths."""
    monkeypatch.setattr("decodekit.neuron_backend.sizing.bandwidth.buffer_size", lambda cache, memory: 2**20)
    transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, n_positions=512).save_pretrained(tmp_path)

    assert widths == inspect(capsys, str(tmp_path), *arguments)["widths"]


def test_an_instance_is_sized_by_its_cores(config, capsys):
    """Each number is that of Sizing, at the given degree."""
    report = inspect(
        capsys, config, "--batch", "2", "--spans", "16", "128", "--instance", "trn2.3xlarge", "--lnc", "1",
        "--tp-degree", "4", "--weights", "int8", "--dtype", "bfloat16",
    )  # fmt: skip
    facts, _ = facts_of_config(config, torch.bfloat16)
    sizing = Sizing(facts, DecoderShape(2, 128, 61, (1, 5, 128), 5), (16, 128), storage="int8")
    instance = instance_named("trn2.3xlarge", 1)

    assert ("bfloat16", sizing.weight_bytes) == (report["dtype"], report["weight_bytes"])
    assert "int8" == report["weights"]
    assert (8, 12 * GIB) == (report["instance"]["cores"], report["instance"]["memory_per_core"])
    assert ([1, 2, 4], 1, 4) == (report["tp_degrees"], report["cores_needed"], report["tp_degree"])
    assert (True, sizing.core_bytes(4)) == (report["fits"], report["bytes_per_core"])
    assert [
        {
            "span": span,
            "bytes_per_token": 4 * sizing.step_bytes(span, 4) / 2,
            "tokens_per_second": sizing.tokens_per_second(instance.bandwidth, span, 4),
        }
        for span in (16, 128)
    ] == report["decoding"]


def test_this_machine_is_measured(config, capsys, monkeypatch):
    """The limit is the measured bandwidth over the bytes of a token; the method is reported."""
    size = "decodekit.neuron_backend.sizing.bandwidth.buffer_size"
    monkeypatch.setattr(size, lambda cache, memory: 2**22)
    report = inspect(capsys, config)
    machine = report["machine"]

    assert "sums over 4 MiB" in machine["method"]
    assert report["fits"]
    for row in report["decoding"]:
        assert pytest.approx(machine["bandwidth"]) == row["tokens_per_second"] * row["bytes_per_token"]


@pytest.mark.parametrize("spare", [0, -1])
def test_a_model_in_the_cpu_cache_is_reported(spare, config, capsys, monkeypatch):
    """Memory is not the limit for a model that fits into the cache, to the last byte."""
    command = "decodekit.neuron_backend.sizing.inspect_command"
    monkeypatch.setattr("decodekit.neuron_backend.sizing.bandwidth.buffer_size", lambda cache, memory: 2**20)
    report = inspect(capsys, config)
    held = report["weight_bytes"] + report["cache_bytes"]
    monkeypatch.setattr(f"{command}.largest_cache", lambda: held + spare)

    assert 0 == main(["inspect", config])
    assert (spare == 0) == ("what follows is no limit then" in capsys.readouterr().out)


def test_the_text_report(tmp_path, capsys):
    """The guide's example as text: estimate, exact sizes, cores and a line for each span."""
    transformers.OPTConfig(
        num_hidden_layers=64, hidden_size=9216, num_attention_heads=72, ffn_dim=36864,
        word_embed_proj_dim=9216, dtype="float16",
    ).save_pretrained(tmp_path)  # fmt: skip

    assert 0 == main(["inspect", str(tmp_path), "--batch", "16", "--instance", "inf2.48xlarge"])
    text = capsys.readouterr().out
    assert "65,719,701,504 parameters, 64 layers, 72 heads, 72 of keys and values, float16" in text
    assert "weights 122.4 GiB: linear layers in float16" in text
    assert "cache   72.1 GiB: 16 rows of 2048 positions" in text
    assert "weights 121.5 GiB, cache 72.0 GiB, cores 24" in text
    assert "cores needed: 24" in text
    assert ["128", "256", "512", "1024", "2048"] == [line.split()[0] for line in text.splitlines()[-5:]]


def test_a_model_that_does_not_fit_is_reported(tmp_path, capsys):
    """With the largest degree, and the bytes per core."""
    transformers.OPTConfig(
        num_hidden_layers=64, hidden_size=9216, num_attention_heads=72, ffn_dim=36864,
        word_embed_proj_dim=9216, dtype="float16",
    ).save_pretrained(tmp_path)  # fmt: skip

    assert 0 == main(["inspect", str(tmp_path), "--instance", "inf2.24xlarge", "--tp-degree", "4"])
    text = capsys.readouterr().out
    assert "cores needed: 8" in text
    assert "a core, does NOT fit" in text
    assert 0 == main(["inspect", str(tmp_path), "--instance", "inf2.xlarge"])
    assert "cores needed: more than it has" in capsys.readouterr().out


def test_the_guides_cores_divide_the_heads_too(tmp_path, capsys):
    """36 heads go on 12 cores of the 24, which do not hold it."""
    transformers.OPTConfig(
        num_hidden_layers=64, hidden_size=9216, num_attention_heads=36, ffn_dim=36864,
        word_embed_proj_dim=9216, dtype="float16",
    ).save_pretrained(tmp_path)  # fmt: skip
    report = inspect(capsys, str(tmp_path), "--batch", "16", "--instance", "inf2.48xlarge")

    assert [1, 2, 4, 12] == report["tp_degrees"]
    assert (None, None, False) == (report["cores_needed"], report["guide"]["cores_needed"], report["fits"])


def test_shared_key_value_heads_are_reported(config, capsys):
    """Two heads on four cores."""
    for degree, shared in (("2", False), ("4", True)):
        assert 0 == main(["inspect", config, "--instance", "trn2.3xlarge", "--tp-degree", degree])
        assert shared == ("some cores hold the same key/value head" in capsys.readouterr().out)


def test_degrees_that_a_compile_refuses_are_told_apart(config, capsys):
    """Four heads, two of keys and values; and floating weights only."""
    for storage, expected in (([], [1, 2]), (["--weights", "int8"], [1])):
        report = inspect(capsys, config, "--instance", "trn2.3xlarge", *storage)

        assert ([1, 2, 4], expected) == (report["tp_degrees"], report["compile_decoder_tp_degrees"])


def test_divided_weights_in_few_bits_are_reported(config, capsys):
    """A tensor-parallel decoder takes floating weights only."""
    for degree, weights, said in (("1", "int8", False), ("2", "int8", True), ("2", None, False)):
        storage = [] if weights is None else ["--weights", weights]
        instance = ["--instance", "trn2.3xlarge", "--tp-degree", degree]
        assert 0 == main(["inspect", config, *instance, *storage])
        assert said == ("weights in int8 over several cores" in capsys.readouterr().out)


def test_experts_are_named(tiny_model, tmp_path, capsys):
    """With the number that a token is routed to."""
    tiny_model("mixtral").config.save_pretrained(tmp_path)

    assert 0 == main(["inspect", str(tmp_path), "--instance", "inf2.xlarge"])
    assert "experts 2 of 4 for a token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--instance", "p5.48xlarge"], "'instance' must be one of inf2.xlarge, "),
        (["--instance", "inf2.xlarge", "--lnc", "2"], "'logical' (--lnc) must be 1 on Inferentia2: got 2"),
        (["--instance", "trn1.32xlarge", "--tp-degree", "8"], "'tp_degree' must be one of (1, 2)"),
        (["--tp-degree", "2"], "give --instance"),
        (["--lnc", "1"], "give --instance"),
        (["--instance", "inf2.xlarge", "--batch", "0"], "'batch_size' must be an integer >= 1: got 0"),
        (["--instance", "inf2.xlarge", "--length", "4096"], "'max_length' must be <= 128"),
        (["--instance", "inf2.xlarge", "--spans", "64"], "'spans' must be ascending and end with"),
        (["--instance", "inf2.xlarge", "--dtype", "int8"], "'dtype' must be one of float32"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message, config, capsys):
    """With the rule and the value."""
    assert message in refused(capsys, config, *arguments)


def test_a_missing_model_is_refused(tmp_path, capsys):
    """Not a folder, a file, or a model in the hub's cache."""
    assert "decodekit: " in refused(capsys, str(tmp_path / "none"), "--instance", "inf2.xlarge")


def config_of(tiny_model, folder, **changes):
    """The folder of a Llama's config with *changes*."""
    facts = {**tiny_model("llama").config.to_dict(), **changes}
    (folder / "config.json").write_text(json.dumps(facts, default=str))
    return str(folder)


class TestConfigs:
    """Errors of a config take a line or two, without a traceback."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"hidden_size": "wide"},
            {"hidden_size": None},
            {"num_attention_heads": 0},
            {"head_dim": 0},
            {"vocab_size": -4},
            {"dtype": "float3"},
            {"rope_parameters": {"rope_type": "none of them"}},
            {"model_type": "none of them"},
        ],
        ids=str,
    )
    def test_with_impossible_values(self, changes, tiny_model, tmp_path, capsys):
        """The message has transformers' own."""
        said = refused(capsys, config_of(tiny_model, tmp_path, **changes), "--instance", "inf2.xlarge")

        assert said.startswith("decodekit: 'model' must have ")
        assert f"'{tmp_path}', " in said

    @pytest.mark.parametrize("content", ["", "{", "null", "[]", "{}", "\x00"], ids=repr)
    def test_that_are_not_configs(self, content, tmp_path, capsys):
        """Files of another kind."""
        (tmp_path / "config.json").write_text(content)

        assert str(tmp_path) in refused(capsys, str(tmp_path), "--instance", "inf2.xlarge")

    def test_of_other_models(self, tmp_path, capsys):
        """Without transformers' list of all models."""
        transformers.T5Config().save_pretrained(tmp_path)

        said = refused(capsys, str(tmp_path), "--instance", "inf2.xlarge")

        assert f"'model' must have the config of a causal LM: got T5Config in '{tmp_path}'" in said
        assert len(said) < 300

    @pytest.mark.parametrize("name", ["LlavaConfig", "Gemma3Config"])
    def test_of_multimodal_models(self, name, tmp_path, capsys):
        """The message advises to pass the text model's config."""
        config = getattr(transformers, name)()
        config.save_pretrained(tmp_path)

        said = refused(capsys, str(tmp_path), "--instance", "inf2.48xlarge")

        assert "what stands under 'text_config' may be given as a config.json of its own" in said
        config.text_config.save_pretrained(tmp_path)
        assert inspect(capsys, str(tmp_path), "--instance", "inf2.48xlarge")["parameters"] > 10**8

    @pytest.mark.parametrize("place", ["no/such/folder", "./folder", "a model"])
    def test_of_nothing(self, place, capsys):
        """The message for a missing path does not speak of a repository."""
        said = refused(capsys, place, "--instance", "inf2.xlarge")

        assert f"got '{place}', which is none of them: there is no such file" in said
