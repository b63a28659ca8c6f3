"""Conversion of ``transformers.GenerationConfig`` to generation parts and back."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from hypothesis import assume, given, settings, strategies as st
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from decodekit.decoding import (
    EndOfSequence,
    Generator,
    Greedy,
    History,
    MaxLength,
    MaxNewTokens,
    MaxTime,
    Sample,
    StopStrings,
    StopTokens,
)
from decodekit.neuron_backend import StaticDecoder
from decodekit.processors import (
    BadWords,
    Chain,
    ForcedLastToken,
    FrequencyPenalty,
    GenerationParts,
    MinLength,
    MinNewTokens,
    RemoveInvalid,
    RepetitionPenalty,
    SequenceBias,
    Temperature,
    TopK,
    TopP,
    from_generation_config,
    to_generation_config,
)
from decodekit.processors.interop.generation_fields import (
    METADATA,
    NO_EFFECT,
    REFUSED,
    SAMPLER_AND_STOP,
    STAGES,
)

from ...strategies import examples

Models = Callable[..., PreTrainedModel]
VOCAB = 61

TOKENS = st.integers(0, 11)
WORDS = st.lists(TOKENS, min_size=1, max_size=3)
PENALTY = st.floats(0.5, 2.0)
SHARE = st.floats(0.05, 0.95)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "do_sample": st.booleans(),
    "max_new_tokens": st.integers(1, 12),
    "max_length": st.integers(6, 20),
    "eos_token_id": st.one_of(TOKENS, st.lists(TOKENS, min_size=2, max_size=3, unique=True)),
    "max_time": st.floats(1.0, 60.0),
    "sequence_bias": st.dictionaries(WORDS.map(tuple), st.floats(-3.0, 3.0), min_size=1, max_size=3),
    "encoder_repetition_penalty": PENALTY,
    "repetition_penalty": PENALTY,
    "no_repeat_ngram_size": st.integers(0, 3),
    "encoder_no_repeat_ngram_size": st.integers(0, 3),
    "bad_words_ids": st.lists(WORDS, min_size=1, max_size=3, unique_by=tuple),
    "min_length": st.integers(0, 12),
    "min_new_tokens": st.integers(0, 8),
    "forced_eos_token_id": st.one_of(TOKENS, st.lists(TOKENS, min_size=1, max_size=2, unique=True)),
    "remove_invalid_values": st.booleans(),
    "exponential_decay_length_penalty": st.tuples(st.integers(0, 6), st.floats(1.01, 1.5)),
    "suppress_tokens": st.lists(TOKENS, min_size=1, max_size=3),
    "begin_suppress_tokens": st.lists(TOKENS, min_size=1, max_size=3),
    "temperature": st.floats(0.3, 2.0),
    "top_h": SHARE,
    "top_k": st.integers(0, 20),
    "top_p": SHARE,
    "min_p": st.floats(0.0, 0.3),
    "typical_p": SHARE,
    "epsilon_cutoff": st.floats(0.0, 0.1),
    "eta_cutoff": st.floats(0.0, 0.1),
    "watermarking_config": st.builds(
        transformers.WatermarkingConfig,
        bias=st.floats(0.5, 3.0),
        context_width=st.integers(1, 2),
        seeding_scheme=st.sampled_from(("lefthash", "selfhash")),
    ),
    "renormalize_logits": st.booleans(),
}


@st.composite
def settings_of(draw: st.DrawFn) -> dict[str, Any]:
    """Some of the fields that are mapped."""
    selected = draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=8))
    fields = {name: draw(FIELDS[name]) for name in selected}
    if "forced_eos_token_id" in fields:
        # They refuse to force what is suppressed.
        fields.pop("suppress_tokens", None)
    if "exponential_decay_length_penalty" in fields:
        # They lift a forbidden end, once a number, to infinity.
        fields.pop("remove_invalid_values", None)
        fields.setdefault("eos_token_id", 3)
    if any(stage.field in fields and stage.only_sampling for stage in STAGES):
        fields["do_sample"] = draw(st.sampled_from((True, True, True, False)))
    return fields


@st.composite
def texts(draw: st.DrawFn) -> tuple[Tensor, int, Tensor]:
    """Ids ``[1, length]``, how many of them are prompt, and logits ``[1, vocab]``."""
    length = draw(st.integers(2, 14))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    ids = torch.randint(0, draw(st.integers(1, 12)), (1, length), generator=rng)
    return ids, draw(st.integers(1, length)), 3 * torch.randn(1, VOCAB, generator=rng)


def config_of(fields: dict[str, Any]) -> GenerationConfig:
    """A config, made as users make it."""
    return GenerationConfig(**fields)


def theirs(model: Any, fields: dict[str, Any], ids: Tensor, prompt: int, logits: Tensor) -> Tensor:
    """What ``generate``'s own list makes of *logits*, prepared as ``generate`` prepares it."""
    unset = fields.get("max_length") is None, fields.get("min_length") is None
    config, _ = model._prepare_generation_config(config_of(fields))
    model._prepare_special_tokens(config, True, device="cpu")
    model._prepare_generated_length(config, *unset, "input_ids", prompt, ids[:, :prompt])
    processors = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=prompt,
        encoder_input_ids=ids[:, :prompt],
        device="cpu",
        model_kwargs={"attention_mask": torch.ones(1, prompt)},
    )
    return processors(ids, logits.clone())


def names(processors: Chain) -> list[str]:
    """The classes in a chain."""
    return [type(processor).__name__ for processor in processors.processors]


class TestTables:
    def test_every_field_is_in_exactly_one(self) -> None:
        """Nothing is ignored silently: a field that transformers adds fails here."""
        tables = [
            *(stage.field for stage in STAGES),
            *SAMPLER_AND_STOP,
            *NO_EFFECT,
            *REFUSED,
            *METADATA,
        ]

        assert [] == [name for name in vars(GenerationConfig()) if tables.count(name) != 1]
        assert len(tables) == len(set(tables))

    def test_every_mapped_field_is_drawn_here(self) -> None:
        """The properties below see all of them; stop strings need a tokenizer and are tested by hand."""
        assert {stage.field for stage in STAGES} | set(SAMPLER_AND_STOP) == {*FIELDS, "stop_strings"}


class TestFromGenerationConfig:
    @settings(deadline=None, max_examples=examples(300))
    @given(fields=settings_of(), text=texts())
    def test_scores_equal_theirs(
        self, fields: dict[str, Any], text: tuple[Tensor, int, Tensor], tiny_model: Models
    ) -> None:
        """Any mapped fields together, at any point of a text."""
        ids, prompt, logits = text
        expected = theirs(tiny_model("llama"), fields, ids, prompt, logits)
        # What is forbidden they may lift to the lowest number, and rows they may empty.
        expected = expected.masked_fill(expected < -1e30, -torch.inf)
        assume(bool((expected > -torch.inf).any() and not expected.isnan().any()))
        history = History(
            ids[:, None], torch.tensor([[ids.shape[1]]]), torch.tensor([prompt]), torch.tensor([0])
        )

        processed = from_generation_config(config_of(fields)).processors(logits[:, None], history)[:, 0]

        processed = processed.masked_fill(processed < -1e30, -torch.inf)
        torch.testing.assert_close(expected, processed, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        "fields",
        [
            {"max_new_tokens": 30, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
            {"max_length": 20, "eos_token_id": [13, 60], "min_length": 15, "forced_eos_token_id": 5},
            {"eos_token_id": 13, "min_new_tokens": 3, "exponential_decay_length_penalty": (2, 1.4)},
            {"max_new_tokens": 9, "suppress_tokens": [8], "begin_suppress_tokens": [3], "temperature": 0.5},
            {"max_new_tokens": 30, "bad_words_ids": [[8], [4, 4]], "sequence_bias": [[[2, 7], -9.0]]},
        ],
        ids=lambda fields: "+".join(fields),
    )
    @pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
    def test_generates_what_generate_does(self, fields: dict[str, Any], tiny_model: Models) -> None:
        """The parts in our generator, and the config in theirs."""
        model, prompt = tiny_model("llama"), [11, 5, 2, 60, 8, 8, 1]
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, 7).long(),
            generation_config=GenerationConfig(pad_token_id=0, **fields),
        )
        decoder = StaticDecoder(model, max_length=64, widths=(1, 16))
        parts = from_generation_config(GenerationConfig(pad_token_id=0, **fields))

        assert expected[0, 7:].tolist() == Generator(decoder, **parts.as_arguments())(prompt).ids[0]

    def test_what_is_forced_comes_though_it_was_forbidden(self, tiny_model: Models) -> None:
        """The end is forced where it is forbidden: it comes, there and here."""
        config = GenerationConfig(max_new_tokens=6, eos_token_id=13, min_new_tokens=9, forced_eos_token_id=13)
        decoder = StaticDecoder(tiny_model("llama"), max_length=64, widths=(1, 16))

        result = Generator(decoder, **from_generation_config(config).as_arguments())([5, 2])

        assert (6, 13) == (len(result.ids[0]), result.ids[0][-1])

    def test_an_empty_config_is_greedy_for_20_tokens(self) -> None:
        """What ``generate`` does when nothing is said."""
        parts = from_generation_config(GenerationConfig())

        assert () == parts.processors.processors
        assert isinstance(parts.sampler, Greedy)
        assert isinstance(parts.stop, MaxNewTokens)
        assert [20] == parts.stop.n.tolist()
        assert {} == parts.unused

    def test_sampling_has_a_top_k_of_50(self) -> None:
        """A default that is on, until it is set to 0."""
        assert "TopK(k=50" in repr(from_generation_config(GenerationConfig(do_sample=True)).processors)
        off = from_generation_config(GenerationConfig(do_sample=True, top_k=0), seed=7)

        assert () == off.processors.processors
        assert isinstance(off.sampler, Sample)
        assert 7 == off.sampler.seed

    def test_says_what_the_defaults_gave(self) -> None:
        """What is set there and not here; not what is passed over, and not a version."""
        model = GenerationConfig(eos_token_id=3, temperature=0.5, top_k=9, max_new_tokens=7)
        config = GenerationConfig(top_k=5, do_sample=True)
        parts = from_generation_config(config, defaults=model, ignore=["temperature"])

        assert {"eos_token_id": 3, "max_new_tokens": 7} == parts.from_defaults
        assert {} == from_generation_config(config).from_defaults

    def test_defaults_give_what_is_not_set(self) -> None:
        """As ``model.generation_config`` in ``generate``: its end tokens too, but nothing that is set."""
        model = GenerationConfig(eos_token_id=[3, 4], max_new_tokens=9, do_sample=True, top_k=7)
        parts = from_generation_config(GenerationConfig(top_k=5), defaults=model)
        alone = from_generation_config(GenerationConfig(top_k=5, do_sample=True))

        assert [3, 4, None] == [finish.matched for finish in parts.stop.finishes]
        assert "TopK(k=5" in repr(parts.processors)
        assert isinstance(parts.sampler, Sample)
        assert ["max_new_tokens"] == [finish.reason for finish in alone.stop.finishes]
        with pytest.raises(TypeError, match=r"'defaults' must be a transformers.GenerationConfig: got 3"):
            from_generation_config(GenerationConfig(), defaults=3)

    def test_the_name_of_a_config_is_no_field(self) -> None:
        """Metadata, as the version that wrote it."""
        config = GenerationConfig()
        config.config_name = "named"

        assert {} == from_generation_config(config).unused

    def test_a_default_that_is_a_value_is_no_wish(self) -> None:
        """In transformers 4 an unset max_length is 20, and means 20 new tokens."""

        class Older:
            def __init__(self, **fields: Any) -> None:
                vars(self).update({"max_length": 20, "temperature": 1.0, "num_beams": 1, "use_cache": True})
                vars(self).update(fields)

        unset, given = from_generation_config(Older()), from_generation_config(Older(max_length=21))

        assert isinstance(unset.stop, MaxNewTokens)
        assert {} == unset.unused
        assert isinstance(given.stop, MaxLength)

    def test_says_what_it_does_not_use(self) -> None:
        """Fields that are set and change no token, with the reason."""
        parts = from_generation_config(
            GenerationConfig(
                temperature=0.5,
                max_length=50,
                max_new_tokens=5,
                min_length=8,
                use_cache=False,
                prompt_lookup_num_tokens=3,
            )
        )

        assert {
            "temperature": "it acts with do_sample only",
            "max_length": "max_new_tokens goes before it",
            "min_length": "there is no eos_token_id to forbid",
            "use_cache": "a decoder keeps its own cache",
            "prompt_lookup_num_tokens": NO_EFFECT["num_assistant_tokens"],
        } == dict(parts.unused)
        both = from_generation_config(GenerationConfig(min_length=8, min_new_tokens=2, eos_token_id=1))
        assert {"min_length": "min_new_tokens goes before it"} == dict(both.unused)
        assert ["MinNewTokens"] == names(both.processors)

    def test_no_min_new_tokens_is_a_wish_as_well(self) -> None:
        """An explicit 0 goes before min_length too."""
        parts = from_generation_config(GenerationConfig(min_length=8, min_new_tokens=0, eos_token_id=1))

        assert () == parts.processors.processors

    def test_an_unknown_field_that_is_not_set_asks_for_nothing(self) -> None:
        """Another version's field, at None or its default, is no reason to refuse every config of it."""

        class Other:
            def __init__(self) -> None:
                self.made_up, self.made_up_switch = None, True

        config = Other()
        assert {} == from_generation_config(config).unused

        config.made_up_switch = False
        with pytest.raises(ValueError, match="'made_up_switch' is no known field"):
            from_generation_config(config)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_beams", 4),
            ("num_beam_groups", 2),
            ("diversity_penalty", 0.5),
            ("constraints", [3]),
            ("force_words_ids", [[3]]),
            ("num_return_sequences", 2),
            ("penalty_alpha", 0.6),
            ("dola_layers", "high"),
            ("guidance_scale", 1.5),
            ("token_healing", True),
            ("forced_bos_token_id", 3),
            ("generation_kwargs", {"a": 1}),
            ("is_assistant", True),
            ("assistant_ensemble_weight", 0.5),
            ("made_up", 1),
        ],
    )
    def test_refuses_by_name(self, name: str, value: Any) -> None:
        """What cannot be done, or is not known, unless the caller says to pass over it."""
        config = GenerationConfig()
        setattr(config, name, value)

        with pytest.raises(ValueError, match=f"'{name}' (must be|is no known field)"):
            from_generation_config(config)
        assert isinstance(from_generation_config(config, ignore=[name]), GenerationParts)

    @pytest.mark.parametrize(
        ("fields", "name", "instead"),
        [
            (
                {"num_beams": 4, "num_beam_groups": 2},
                "num_beam_groups",
                r"generator\(prompt, num_samples=n\)",
            ),
            ({"num_beams": 4, "diversity_penalty": 0.5}, "diversity_penalty", "num_samples=n"),
            ({"num_beams": 4, "constraints": [3]}, "constraints", "Grammar, with a regex"),
            ({"num_beams": 4, "force_words_ids": [[3]]}, "force_words_ids", "Grammar, with a regex"),
            ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha", "RepetitionPenalty, NoRepeatNgram and DRY"),
            ({"dola_layers": "high"}, "dola_layers", r"Combined\(\[target, target.early_exit\(n\)\]"),
            ({"token_healing": True}, "token_healing", r"TokenHealing\(generator, ForcedPrefix\)"),
        ],
    )
    def test_says_what_to_use_instead(self, fields: dict[str, Any], name: str, instead: str) -> None:
        """Of several fields the most telling one is named."""
        config = GenerationConfig()
        for field, value in fields.items():
            setattr(config, field, value)

        with pytest.raises(ValueError, match=f"'{name}' must be .*{instead}"):
            from_generation_config(config)

    def test_every_refused_field_is_tried(self) -> None:
        """The list above is complete."""
        marks = self.test_refuses_by_name.pytestmark  # type: ignore[attr-defined]

        assert set(REFUSED) == {name for name, _ in marks[0].args[1]} - {"made_up"}

    def test_off_values_are_not_refused(self) -> None:
        """At these values a field asks for nothing."""
        for name, (values, _) in REFUSED.items():
            for value in values:
                config = GenerationConfig()
                setattr(config, name, value)

                assert () == from_generation_config(config).processors.processors

    def test_stop_strings_need_a_tokenizer(self) -> None:
        """As in ``generate``; the text keeps them, as there."""
        config = GenerationConfig(stop_strings=["x"], max_new_tokens=3)
        with pytest.raises(ValueError, match="'stop_strings' needs a tokenizer"):
            from_generation_config(config)

        stop = from_generation_config(config, tokenizer=Letters()).stop

        assert ["stop_string", "max_new_tokens"] == [finish.reason for finish in stop.finishes]
        assert not stop.finishes[0].hide

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"exponential_decay_length_penalty": (2, 1.1)}, "needs an 'eos_token_id'"),
            (
                {
                    "watermarking_config": transformers.SynthIDTextWatermarkingConfig(
                        ngram_len=3, keys=[1], debug_mode=True
                    )
                },
                "without debug_mode",
            ),
        ],
    )
    def test_refuses_what_does_not_fit(self, fields: dict[str, Any], message: str) -> None:
        """A field whose value cannot be done."""
        with pytest.raises(ValueError, match=message):
            from_generation_config(GenerationConfig(**fields))


class Letters:
    """A tokenizer of letters."""

    def convert_ids_to_tokens(self, ids: int) -> str:
        return self.decode([ids])

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """One letter a token."""
        return "".join(chr(97 + token) for token in ids)


class TestToGenerationConfig:
    @settings(deadline=None, max_examples=examples(200))
    @given(fields=settings_of())
    def test_gives_back_what_parts_were_made_of(self, fields: dict[str, Any]) -> None:
        """There and back: the same parts again, and every field that was in use as it was."""
        parts = from_generation_config(config_of(fields))
        config = to_generation_config(**parts.as_arguments())
        again = from_generation_config(config)

        assert repr((parts.processors, parts.stop)) == repr((again.processors, again.stop))
        assert type(parts.sampler) is type(again.sampler)
        assert {} == again.unused
        for stage in STAGES:
            mine = getattr(config, stage.field)
            if (
                mine is None
                or stage.field not in fields
                or stage.field in ("sequence_bias", "watermarking_config")
            ):
                continue
            given_one = fields[stage.field]
            if stage.field in ("suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id"):
                given_one = sorted(set([given_one] if isinstance(given_one, int) else given_one))
            assert given_one == mine

    def test_says_what_is_off(self) -> None:
        """Otherwise ``generate`` would take it from the config that came with the model."""
        config = to_generation_config(sampler=Sample(seed=0), stop=MaxNewTokens(5))

        assert (1.0, 0, 1.0, 1.0, 0) == (
            config.temperature,
            config.top_k,
            config.top_p,
            config.repetition_penalty,
            config.no_repeat_ngram_size,
        )

    @pytest.mark.parametrize("nothing", [SequenceBias({}), BadWords([])])
    def test_leaves_out_an_empty_list(self, nothing: Any) -> None:
        """``generate`` refuses one."""
        config = to_generation_config(nothing, sampler=Greedy(), stop=MaxNewTokens(5))

        assert (None, None) == (config.sequence_bias, config.bad_words_ids)

    def test_takes_a_synthid_watermark(self) -> None:
        """Its settings are the config's."""
        watermark = transformers.SynthIDTextWatermarkingConfig(
            ngram_len=4, keys=[5, 7], context_history_size=9
        )
        parts = from_generation_config(GenerationConfig(watermarking_config=watermark))

        assert watermark == to_generation_config(**parts.as_arguments()).watermarking_config

    def test_stop_strings_come_back(self) -> None:
        """The strings; a tokenizer is given to ``generate``."""
        stop = (
            EndOfSequence([2, 1]) | StopStrings(["a", "b"], Letters(), hide=False) | MaxTime(3) | MaxLength(9)
        )
        config = to_generation_config(sampler=Greedy(), stop=stop)

        assert ["a", "b"] == config.stop_strings
        assert [2, 1] == config.eos_token_id
        assert (3.0, 9, None) == (config.max_time, config.max_length, config.max_new_tokens)

    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            pytest.param({"processors": FrequencyPenalty(0.5)}, "must be stages of a gen", id="no-field"),
            pytest.param(
                {"processors": TopP(0.9) | TopK(3)}, "'top_k' does not come after 'top_p'", id="order"
            ),
            pytest.param(
                {"processors": TopK(9) | TopK(3)}, "'top_k' does not come after 'top_k'", id="twice"
            ),
            pytest.param({"processors": Temperature([0.5])}, "no parameters one per row", id="per-row"),
            pytest.param(
                {"processors": RepetitionPenalty(1.1, include_prompt=False)}, "no options that", id="option"
            ),
            pytest.param({"processors": RemoveInvalid()}, "no options that", id="another-nan"),
            pytest.param({"processors": MinNewTokens(3, [5])}, "the stop's tokens", id="another-end"),
            pytest.param(
                {"processors": ForcedLastToken(2, max_new_tokens=7, logit=0.0)},
                "and limits",
                id="another-limit",
            ),
            pytest.param(
                {"processors": Temperature(0.5), "sampler": Greedy()}, "have no 'temperature'", id="greedy"
            ),
            pytest.param({"sampler": torch.argmax}, "'sampler' must be Greedy", id="sampler"),
            pytest.param({"stop": EndOfSequence(3)}, "must have MaxNewTokens or MaxLength", id="no-limit"),
            pytest.param({"stop": StopTokens(3) | MaxNewTokens(5)}, "got StopTokens", id="stop"),
            pytest.param({"stop": EndOfSequence(3) & MaxNewTokens(5)}, "joined with |", id="and"),
            pytest.param(
                {"stop": (EndOfSequence(3) & EndOfSequence(4)) | MaxNewTokens(5)},
                "joined with |",
                id="inner-and",
            ),
            pytest.param(
                {"stop": MaxNewTokens(5) | MaxNewTokens(6)}, "'max_new_tokens' once", id="two-limits"
            ),
            pytest.param({"stop": EndOfSequence(3, hide=True) | MaxNewTokens(5)}, "hide=True", id="hidden"),
            pytest.param({"stop": StopStrings("a", Letters()) | MaxNewTokens(5)}, "hide=True", id="cut"),
            pytest.param(
                {"stop": MaxTime(3, since="first_token") | MaxNewTokens(5)},
                "since='first_token'",
                id="time-from-the-first-token",
            ),
            pytest.param({"stop": MaxNewTokens([5, 6])}, "what a generation config can say", id="limits"),
            pytest.param(
                {"processors": MinLength(50, [3]) | MinNewTokens(2, [3])},
                "must have MinLength or MinNewTokens, not both",
                id="minima",
            ),
        ],
    )
    def test_refuses_what_no_field_can_say(self, parts: dict[str, Any], message: str) -> None:
        """A config that would mean something else is not made."""
        whole = {"sampler": Sample(seed=0), "stop": EndOfSequence(3) | MaxNewTokens(5)} | parts

        with pytest.raises(ValueError, match=message.replace("|", r"\|")):
            to_generation_config(**whole)
