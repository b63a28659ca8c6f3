import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM, PreTrainedModel

from decodekit.decoding import Generator, Greedy, MaxNewTokens, Sample
from decodekit.decoding.stopping.composition import parts as conditions
from decodekit.neuron_backend import compile_decoder, load_decoder
from decodekit.neuron_backend.models.tokenizer_source import load_tokenizer
from decodekit.processors import Temperature
from decodekit.speculation import ConfidenceLength, DraftModel, PromptLookup, SpeculativeGenerator

from ..hub_stand_in import running_hub

SHAPE: dict[str, Any] = {"target": "eager", "widths": (1, 5), "max_length": 64, "progress": False}


def words() -> Any:
    """A tokenizer of 61 words, w0 to w60; w60 ends a sequence."""
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(61)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="w60", unk_token="w0")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} w1 {% endfor %}"
    return tokenizer


@pytest.fixture
def folder(tiny_model: Any, tmp_path: Path) -> Path:
    """A model's folder, with a tokenizer and a generation config."""
    model: PreTrainedModel = tiny_model("llama")
    model.save_pretrained(tmp_path / "model")
    words().save_pretrained(tmp_path / "model")
    GenerationConfig(
        do_sample=True, temperature=0.5, top_k=7, eos_token_id=[3, 4], max_new_tokens=9
    ).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


class TestFromPretrained:
    def test_settings_in_the_config_alone(self, folder: Path, tmp_path: Path) -> None:
        """As older models have them: generate reads them, and so do a loaded model and a saved decoder."""
        (folder / "generation_config.json").unlink()
        config = json.loads((folder / "config.json").read_text())
        settings = {"eos_token_id": [3, 4], "repetition_penalty": 1.5}
        (folder / "config.json").write_text(json.dumps(config | settings))
        model = LlamaForCausalLM.from_pretrained(folder)
        text = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=24, do_sample=False)
        expected = text[0, 3:].tolist()
        generator = Generator.from_pretrained(folder, **SHAPE)
        generator.save(tmp_path / "saved")
        loaded = Generator.from_pretrained(tmp_path / "saved")
        of_model = Generator.from_pretrained(model, **SHAPE)

        for one in (generator, loaded, of_model):
            assert "RepetitionPenalty" in repr(one.processors)
            found = one([5, 6, 7]).ids[0]
            assert expected[: len(found)] == found[: len(expected)]
            assert {3, 4} <= {f.matched for f in one.stop_condition.finishes}

    def test_brings_what_the_files_say(self, folder: Path) -> None:
        """Chain, sampler, limit, and the end tokens of config and tokenizer; as put together by hand."""
        generator = Generator.from_pretrained(folder, sampler=Sample(seed=3), **SHAPE)
        by_hand = Generator(
            compile_decoder(folder, **SHAPE),
            processors=generator.processors,
            sampler=Sample(seed=3),
            stop=MaxNewTokens(9),
            end_of_sequence=(3, 4, 60),
            tokenizer=words(),
        )

        assert "Temperature(temperature=0.5)" in repr(generator.processors)
        assert [3, 4, 60] == [
            f.matched for f in generator.stop_condition.finishes if f.reason == "end_of_sequence"
        ]
        assert generator("w5 w6").ids == by_hand("w5 w6").ids

    def test_a_greedy_sampler_takes_no_temperature_along(self, folder: Path) -> None:
        """The config is read for the sampler that is given."""
        generator = Generator.from_pretrained(folder, sampler=Greedy(), **SHAPE)

        assert () == generator.processors.processors

    def test_what_is_given_wins(self, folder: Path) -> None:
        """Parts and end tokens; the rest is the config's."""
        chain = Temperature(2.0)
        generator = Generator.from_pretrained(
            folder, processors=chain, stop=MaxNewTokens(2), end_of_sequence=None, **SHAPE
        )

        assert generator.processors is chain
        assert ["max_new_tokens"] == [finish.reason for finish in generator.stop_condition.finishes]

    @pytest.mark.parametrize(
        ("fields", "options", "expected"),
        [
            ({"bos_token_id": 8}, {}, 8),
            ({"decoder_start_token_id": 9}, {}, 9),
            ({"bos_token_id": 8}, {"start_of_sequence": 4}, 4),
            ({"bos_token_id": 8}, {"start_of_sequence": None}, None),
            ({}, {}, None),
        ],
    )
    def test_start_token(
        self, folder: Path, fields: dict[str, Any], options: dict[str, Any], expected: int | None
    ) -> None:
        """The config's; the tokenizer has none. What is given wins."""
        config = GenerationConfig(**fields)
        generator = Generator.from_pretrained(folder, generation_config=config, **options, **SHAPE)

        assert generator.start_token == expected

    def test_text_without_a_prompt_is_transformers(self, folder: Path, tiny_model: Any) -> None:
        """``generate()`` of the stock model begins with the config's start token too."""
        model: PreTrainedModel = tiny_model("llama")
        config = GenerationConfig(bos_token_id=8, max_new_tokens=9)
        generator = Generator.from_pretrained(model, generation_config=config, **SHAPE)

        assert model.generate(generation_config=config).tolist() == generator(None).sequences

    def test_a_draft_models_length_is_the_configs(self, folder: Path, tiny_model: Any) -> None:
        """A confidence threshold ends its drafts."""
        config = GenerationConfig(assistant_confidence_threshold=0.3, num_assistant_tokens=4)
        drafter = DraftModel(compile_decoder(tiny_model("llama"), **SHAPE))
        options: dict[str, Any] = {"generation_config": config, "drafter": drafter, **SHAPE}

        assert (
            ConfidenceLength(4, 0.3)
            == SpeculativeGenerator.from_pretrained(folder, **options).num_draft_tokens
        )
        assert 2 == Generator.from_pretrained(folder, num_draft_tokens=2, **options).num_draft_tokens

    def test_parts_that_are_given_need_no_config(self, folder: Path) -> None:
        """But for the end tokens; a field that cannot be mapped does no harm then."""
        config = GenerationConfig(num_beams=4, eos_token_id=7)
        parts = {"processors": None, "sampler": Greedy(), "stop": MaxNewTokens(2)}
        generator = Generator.from_pretrained(folder, generation_config=config, **parts, **SHAPE)

        assert [{7, 60}] == [
            set(one.ids) for one in conditions(generator.stop_condition) if hasattr(one, "ids")
        ]
        assert 2 == len(generator("w5 w6").ids[0])
        with pytest.raises(ValueError, match="'num_beams' must be"):
            Generator.from_pretrained(folder, generation_config=config, sampler=Greedy(), **SHAPE)

    def test_without_a_config_the_tokenizer_ends_a_row(self, folder: Path) -> None:
        """None: no generation config is read."""
        generator = Generator.from_pretrained(folder, generation_config=None, **SHAPE)

        assert isinstance(generator.sampler, Greedy)
        assert [60, None] == [finish.matched for finish in generator.stop_condition.finishes]

    @pytest.mark.parametrize("config", ["own", {"max_new_tokens": 3}])
    def test_a_config_of_another_kind(self, folder: Path, config: Any) -> None:
        """It is refused before anything is compiled."""
        with pytest.raises(ValueError, match=r"a transformers.GenerationConfig or None: got"):
            Generator.from_pretrained(folder, generation_config=config, **SHAPE)

    def test_of_a_model_in_memory(self, tiny_model: Any) -> None:
        """It has no tokenizer; ids are taken."""
        generator = Generator.from_pretrained(tiny_model("llama"), stop=MaxNewTokens(3), **SHAPE)

        assert 3 == len(generator([1, 2]).ids[0])
        assert generator.tokenizer is None

    def test_speculative(self, folder: Path) -> None:
        """The class is the caller's; the drafter is required before anything is compiled."""
        parts: dict[str, Any] = {"sampler": Greedy(), "stop": MaxNewTokens(6), **SHAPE}
        plain = Generator.from_pretrained(folder, **parts)
        fast = SpeculativeGenerator.from_pretrained(folder, drafter=PromptLookup(), **parts)

        assert isinstance(fast, SpeculativeGenerator)
        assert plain("w5 w6").ids == fast("w5 w6").ids
        with pytest.raises(TypeError, match=r"SpeculativeGenerator.from_pretrained\(\) needs 'drafter'"):
            SpeculativeGenerator.from_pretrained(folder, **parts)

    def test_a_saved_decoder_is_loaded(self, folder: Path, tmp_path: Path) -> None:
        """Saved by its generator, tokenizer included; its shape is its own."""
        first = Generator.from_pretrained(folder, sampler=Greedy(), **SHAPE)
        first.save(tmp_path / "saved")
        again = Generator.from_pretrained(tmp_path / "saved", sampler=Greedy())

        assert first("w5 w6").text == again("w5 w6").text
        assert first.stop_condition.finishes == again.stop_condition.finishes
        with pytest.raises(TypeError, match="of a saved decoder has no option 'max_length', which is fixed"):
            Generator.from_pretrained(tmp_path / "saved", max_length=8)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"temprature": 1}, TypeError, "of a model has no option 'temprature'"),
            ({"seed": 1}, TypeError, r"no option 'seed'; a Generator takes sampler=Sample\(seed=...\)"),
            ({"sampler": 3}, TypeError, "'sampler' must be callable"),
            ({"generation_config": "none"}, ValueError, "'generation_config' must be 'auto'"),
            ({"end_of_sequence": "tokenizer"}, ValueError, "'end_of_sequence' must be 'auto'"),
            (
                {"drafter": PromptLookup(), "num_draft_tokens": 8, "widths": (1, 5, 16), "scored_width": 5},
                ValueError,
                r"at most 4, .* with widths \(1, 5, 16\): got 8. Give 9 among the widths",
            ),
            (
                {"drafter": PromptLookup(), "num_draft_tokens": 8, "widths": None},
                ValueError,
                r"at most 4, .* with widths \(1, 5, 128\): got 8. Give 9 among the widths",
            ),
            (
                {"drafter": PromptLookup(), "widths": (1, 64)},
                ValueError,
                "'num_draft_tokens' must be at most 0, .*: got 4. Give 5 among the widths",
            ),
        ],
    )
    def test_refuses_before_compiling(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], error: Any, message: str
    ) -> None:
        """Compiling takes minutes."""
        monkeypatch.setattr("decodekit.pretrained.from_files.compile_decoder", compile_decoder)
        options = {**SHAPE, "target": "no such target"} | options
        with pytest.raises(error, match=message):
            Generator.from_pretrained(folder, **options)

    def test_a_path_to_nothing(self, tmp_path: Path) -> None:
        """As for compile_decoder."""
        with pytest.raises(FileNotFoundError, match="'model' must be a folder"):
            Generator.from_pretrained(tmp_path / "nothing at all")


class TestTokenizers:
    def test_a_decoder_saves_its_sources_tokenizer(self, folder: Path, tmp_path: Path) -> None:
        """And gives it back; transformers reads it too."""
        compile_decoder(folder, **SHAPE).save(tmp_path / "saved")
        text = "w5 w6 w60"
        given = load_decoder(tmp_path / "saved").tokenizer

        assert given is not None
        assert words()(text)["input_ids"] == given(text)["input_ids"]
        assert (
            given(text)["input_ids"] == AutoTokenizer.from_pretrained(tmp_path / "saved")(text)["input_ids"]
        )
        assert words().chat_template == given.chat_template

    def test_one_that_is_given_goes_before_it(self, folder: Path, tmp_path: Path) -> None:
        """As before."""
        other = words()
        other.chat_template = "other"
        compile_decoder(folder, **SHAPE).save(tmp_path / "saved", other)
        found = load_decoder(tmp_path / "saved").tokenizer

        assert found is not None
        assert "other" == found.chat_template

    def test_it_is_found_from_another_folder(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A path is that of the folder in which it was given."""
        monkeypatch.chdir(folder.parent)
        made = compile_decoder(folder.name, **SHAPE)
        made.save("saved")
        decoders = [made, load_decoder("saved")]
        monkeypatch.chdir("/")

        assert all(decoder.tokenizer is not None for decoder in decoders)

    def test_a_model_without_one_has_none(self, tiny_model: Any, tmp_path: Path) -> None:
        """Of a GPT-2 without files transformers makes a tokenizer that encodes everything to nothing."""
        tiny_model("gpt2").save_pretrained(tmp_path / "model")
        decoder = compile_decoder(tmp_path / "model", **SHAPE)
        decoder.save(tmp_path / "saved")

        assert decoder.tokenizer is None
        assert load_decoder(tmp_path / "saved").tokenizer is None
        assert compile_decoder(tiny_model("llama"), **SHAPE).tokenizer is None

    @pytest.mark.parametrize("kind", ["LlamaTokenizer", "Qwen2Tokenizer", "T5Tokenizer"])
    def test_one_without_a_vocabulary_is_none(self, kind: str, tiny_model: Any, tmp_path: Path) -> None:
        """Of such a class transformers makes one of special tokens."""
        tiny_model("llama").save_pretrained(tmp_path)
        (tmp_path / "tokenizer_config.json").write_text(f'{{"tokenizer_class": "{kind}"}}')

        assert load_tokenizer(tmp_path) is None

    @pytest.mark.parametrize("family", ["qwen2", "llama"])
    def test_one_of_its_own_kind_is_saved_as_it_is(
        self, family: str, tiny_model: Any, tmp_path: Path
    ) -> None:
        """Transformers would read it as the family's tokenizers usually are."""
        decoder = compile_decoder(tiny_model(family), **SHAPE)
        decoder.save(tmp_path / "saved", tokenizer=words())
        loaded = load_decoder(tmp_path / "saved")
        loaded.save(tmp_path / "again")
        expected = words()("w5 w6 w7")["input_ids"]

        assert [5, 6, 7] == expected == loaded.tokenizer("w5 w6 w7")["input_ids"]
        assert expected == load_decoder(tmp_path / "again").tokenizer("w5 w6 w7")["input_ids"]
        assert expected == load_tokenizer(tmp_path / "saved")("w5 w6 w7")["input_ids"]

    def test_one_of_bytes_needs_no_vocabulary(self, tiny_model: Any, tmp_path: Path) -> None:
        tiny_model("llama").save_pretrained(tmp_path)
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
        found = load_tokenizer(tmp_path)

        assert found is not None
        assert [100, 101] == found("ab", add_special_tokens=False)["input_ids"]

    @pytest.mark.parametrize("kind", ["LlamaTokenizerFast", "PreTrainedTokenizerFast"])
    @pytest.mark.parametrize("content", ["{}", '{"model": {"type": "Newer"}}'])
    def test_a_broken_one_is_no_reason_not_to_save(
        self, content: str, kind: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A warning says so; asked for, the tokenizer raises."""
        (folder / "tokenizer.json").write_text(content)
        (folder / "tokenizer_config.json").write_text(f'{{"tokenizer_class": "{kind}"}}')
        decoder = compile_decoder(folder, **SHAPE)
        with caplog.at_level(logging.WARNING, logger="decodekit"):
            decoder.save(tmp_path / "saved")

        assert "is not saved: it cannot be loaded" in caplog.text
        assert load_decoder(tmp_path / "saved").tokenizer is None


def test_a_revision_of_a_repository(tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoder, tokenizer and generation config are its own, read with the token."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    model: PreTrainedModel = copy.deepcopy(tiny_model("llama"))
    with running_hub(monkeypatch, tmp_path / "hub"):
        for revision, limit in (("main", 3), ("v2", 9)):
            model.generation_config = GenerationConfig(max_new_tokens=limit)
            decoder = compile_decoder(model, **SHAPE)
            tokenizer = words() if revision == "v2" else None
            decoder.push_to_hub("user/tiny", tokenizer, private=True, revision=revision, token="secret")
        found = Generator.from_pretrained("user/tiny", revision="v2", token="secret", sampler=Greedy())

        assert 9 == len(found([[5]]).ids[0])
        assert words().get_vocab() == found.tokenizer.get_vocab()
