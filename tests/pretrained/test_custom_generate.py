"""``generate(custom_generate=decodekit_generate)`` does what ``generate`` does, with a generator's parts."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    MaxTimeCriteria,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
)
from transformers.generation import GenerateDecoderOnlyOutput

from decodekit.decoding import (
    EndOfSequence,
    Generator,
    Greedy,
    MaxNewTokens,
    Sample,
    StopTokens,
    TransformersModel,
)
from decodekit.decoding.interop.cache_name import CACHE
from decodekit.neuron_backend import StaticDecoder
from decodekit.pretrained import decodekit_generate
from decodekit.pretrained.draft_fields import drafting_of
from decodekit.processors import RepetitionPenalty, Temperature, TopK, from_transformers
from decodekit.speculation import ConfidenceLength, DraftModel, PromptLookup
from decodekit.streaming import Callback

PAD = 0
Models = Callable[..., PreTrainedModel]
PROMPTS = [list(range(3, 20)), [7], [11, 5, 2, 60, 8, 8, 1]]


def padded(rows: list[list[int]]) -> dict[str, Tensor]:
    """Ids padded on the left, and the mask."""
    longest = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[PAD] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]),
    }


RAGGED = padded(PROMPTS)


class Repeats(StoppingCriteria):
    """The newest token occurred before."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return (input_ids[:, :-1] == input_ids[:, -1:]).any(dim=-1)


class Even(LogitsProcessor):
    """Even tokens alone."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.masked_fill(torch.arange(scores.shape[-1]) % 2 == 1, -torch.inf)


@pytest.fixture(scope="module")
def stock(tiny_model: Models) -> PreTrainedModel:
    """The model, in float64."""
    return tiny_model("llama", torch.float64)


@pytest.fixture(scope="module")
def decoder(stock: PreTrainedModel) -> StaticDecoder:
    """A decoder of three rows."""
    return StaticDecoder(stock, batch_size=3, max_length=64, widths=(1, 5, 16))


ENDS = [5, 9, 13, 30]
GREEDY: dict[str, dict[str, Any]] = {
    "plain": {},
    "ends": {"eos_token_id": ENDS},
    "mask-inferred": {"attention_mask": None},
    "max-length": {"max_new_tokens": None, "max_length": 30},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "min-new-tokens": {"min_new_tokens": 6, "eos_token_id": ENDS},
    "min-length": {"min_length": 20, "eos_token_id": ENDS},
    "forced-end": {"forced_eos_token_id": 4, "eos_token_id": 4},
    "begin-suppressed": {"begin_suppress_tokens": list(range(30))},
    "criteria": {"stopping_criteria": StoppingCriteriaList([Repeats()]), "eos_token_id": ENDS},
    "processor": {"logits_processor": [Even()], "repetition_penalty": 1.2},
    "prefixes": {"prefix_allowed_tokens_fn": lambda row, ids: [3 + row, 9, int(ids[-1]) // 2]},
    "lookup": {"prompt_lookup_num_tokens": 4, **padded(PROMPTS[2:])},
    "sequences-of-greedy": {"return_dict_in_generate": True},
    "no-prompt": {"input_ids": None, "attention_mask": None, "bos_token_id": 8},
}


def said(model: Any, **options: Any) -> Any:
    """What ``generate`` returns."""
    defaults = {**RAGGED, "max_new_tokens": 14, "pad_token_id": PAD, "do_sample": False}
    given = {name: value for name, value in {**defaults, **options}.items() if value is not None}
    return model.generate(**given)


@pytest.mark.parametrize("wrapped", [False, True], ids=["stock", "wrapped"])
@pytest.mark.parametrize("name", GREEDY)
def test_greedy_is_the_models_own(
    name: str, wrapped: bool, stock: PreTrainedModel, decoder: StaticDecoder
) -> None:
    """With the model's decoder, or with a wrapped decoder in the model's place."""
    options = GREEDY[name]
    model: Any = TransformersModel(decoder) if wrapped else stock
    ours = {"custom_generate": decodekit_generate, **({} if wrapped else {"decoder": decoder})}
    expected, found = said(stock, **options), said(model, **ours, **options)

    if "return_dict_in_generate" in options:
        assert isinstance(found, GenerateDecoderOnlyOutput)
        expected, found = expected.sequences, found.sequences
    assert expected.tolist() == found.tolist()


def test_a_prefix_without_tokens_is_an_error(stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """As in the model's own; it names the prompt."""
    options = {"prefix_allowed_tokens_fn": lambda row, ids: [3] if row == 0 else []}
    with pytest.raises(ValueError, match=r"row|batch"):
        said(stock, **options)
    with pytest.raises(
        ValueError, match="'prefix_allowed_tokens_fn' must return tokens: got none for prompt 1"
    ):
        said(stock, custom_generate=decodekit_generate, decoder=decoder, **options)


def test_sampling_is_a_generators(stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """Parts of the options, those that are given beside them, and torch's generator for a seed."""
    options = {"do_sample": True, "temperature": 0.7, "top_k": 9, "custom_generate": decodekit_generate}
    chain = Temperature(0.7) | TopK(9)
    generator = Generator(decoder, processors=chain, sampler=Sample(seed=3), stop=MaxNewTokens(14))
    expected = generator(PROMPTS).ids

    def new(**more: Any) -> Any:
        return said(stock, decoder=decoder, **{**options, **more})[:, 17:].tolist()

    assert expected == new(sampler=Sample(seed=3))
    penalised = attrs.evolve(generator, processors=RepetitionPenalty(1.3) | chain)
    assert penalised(PROMPTS).ids == new(sampler=Sample(seed=3), processors=RepetitionPenalty(1.3))

    def seeded() -> Any:
        torch.manual_seed(11)
        return new()

    assert seeded() == seeded() != new()


def test_rows_have_streams_of_their_own(stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """Repeated prompts sample different texts; ``random_streams`` says which."""
    options = {
        **padded(PROMPTS[:1]),
        "do_sample": True,
        "custom_generate": decodekit_generate,
        "decoder": decoder,
        "sampler": Sample(seed=3),
    }
    rows = said(stock, num_return_sequences=5, **options).tolist()

    assert 5 == len({tuple(row) for row in rows})
    assert rows[4] == said(stock, random_streams=[4], **options)[0].tolist()


def test_a_given_processor_comes_before_the_filters(stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """As in transformers: penalties, what is given, temperature and filters."""
    even = Even()
    chain = RepetitionPenalty(1.2) | from_transformers(even) | Temperature(0.7) | TopK(5)
    generator = Generator(decoder, processors=chain, sampler=Sample(seed=3), stop=MaxNewTokens(14))
    found = said(
        stock,
        repetition_penalty=1.2,
        temperature=0.7,
        top_k=5,
        do_sample=True,
        logits_processor=[even],
        custom_generate=decodekit_generate,
        decoder=decoder,
        sampler=Sample(seed=3),
    )

    assert generator(PROMPTS).ids == found[:, 17:].tolist()


def test_parts(stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """A stop beside the limit, a drafter, and a streamer that is bound."""

    class Streamer:
        def __init__(self) -> None:
            self.ids: list[int] = []
            self.ended = 0

        def put(self, ids: Tensor) -> None:
            self.ids += ids.flatten().tolist()

        def end(self) -> None:
            self.ended += 1

    streamer = Streamer()
    found = said(
        stock,
        **padded(PROMPTS[:1]),
        custom_generate=partial(decodekit_generate, streamer=streamer),
        decoder=decoder,
        drafter=PromptLookup(),
        num_draft_tokens=3,
        stop=StopTokens([60]),
        max_new_tokens=30,
        eos_token_id=ENDS,
    )
    stop = EndOfSequence(ENDS) | StopTokens([60]) | MaxNewTokens(30)

    assert Generator(decoder, stop=stop)(PROMPTS[0]).ids[0] == found[0, 17:].tolist()
    assert found[0].tolist() == streamer.ids
    assert 1 == streamer.ended


def test_a_stop_joins_the_limit_that_was_asked_for(stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """As do all of its criteria."""
    found = said(
        stock, custom_generate=decodekit_generate, decoder=decoder, stop=StopTokens([1_000]), max_new_tokens=5
    )

    assert Generator(decoder, stop=MaxNewTokens(5))(PROMPTS).ids == found[:, 17:].tolist()


def test_a_stop_takes_the_place_of_the_default_limit(stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """Of 20 new tokens."""
    options = {"custom_generate": decodekit_generate, "decoder": decoder, "max_new_tokens": None}
    with pytest.warns(UserWarning, match="max_length"):
        found = said(stock, **options, stop=MaxNewTokens(23))

    assert Generator(decoder, stop=MaxNewTokens(23))(PROMPTS).ids == found[:, 17:].tolist()


def test_text_for_a_streamer(stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """A tokenizer is bound beside it."""
    texts: list[str] = []

    class Words:
        def decode(self, token_ids: list[int], **options: Any) -> str:
            return "".join(f"{token} " for token in token_ids)

        def convert_ids_to_tokens(self, ids: int) -> str:
            return f"{ids} "

    streamer = Callback(lambda event: texts.append(event.text))
    found = said(
        stock,
        **padded(PROMPTS[:1]),
        custom_generate=partial(decodekit_generate, streamer=streamer, tokenizer=Words()),
        decoder=decoder,
    )

    assert found[0, 17:].tolist() == [int(word) for word in "".join(texts).split()]


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no-decoder": ({"decoder": None}, TypeError, r"needs decoder=compile_decoder\(model, \.\.\.\)"),
    "scores": ({"output_scores": True}, ValueError, "'output_scores' must be False"),
    "beams": ({"num_beams": 2}, ValueError, "'num_beams' must be"),
    "guidance": ({"guidance_scale": 1.5}, ValueError, "guidance"),
    "length": (
        {"max_new_tokens": 49},
        ValueError,
        "at most 65, one more than the decoder's max_length: got 66",
    ),
    "embeddings": (
        {"input_ids": None, "attention_mask": None, "inputs_embeds": torch.zeros(1, 3, 32).double()},
        ValueError,
        "no model argument 'inputs_embeds'",
    ),
    "right-padding": (
        {"input_ids": torch.tensor([[3, 0]]), "attention_mask": torch.tensor([[1, 0]])},
        ValueError,
        "padding_side='left'",
    ),
    "replaced": (
        {"do_sample": True, "temperature": 0.5, "logits_processor": [TemperatureLogitsWarper(0.9)]},
        ValueError,
        "must not have what the generation config sets too",
    ),
    "no-padding-token": (
        {"pad_token_id": None, "stopping_criteria": StoppingCriteriaList([Repeats()])},
        ValueError,
        "'pad_token_id' must be set",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """By name."""
    options, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        said(stock, **{"decoder": decoder, "custom_generate": decodekit_generate, **options})


def test_a_filled_cache_is_refused(stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """The decoder keeps what it was fed: whole prompts are given, and nothing of them is fed twice."""
    first = said(stock, **padded(PROMPTS[:1]), return_dict_in_generate=True)
    assert isinstance(getattr(first, CACHE), DynamicCache)
    with pytest.raises(ValueError, match="Give whole prompts"):
        said(
            stock,
            input_ids=first.sequences,
            attention_mask=None,
            decoder=decoder,
            custom_generate=decodekit_generate,
            **{CACHE: getattr(first, CACHE)},
        )


def test_criteria_with_a_clock_of_their_own(stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """A time that is over ends every row at its first token."""
    over = StoppingCriteriaList([MaxTimeCriteria(0.0, initial_timestamp=0.0)])
    found = said(stock, stopping_criteria=over, decoder=decoder, custom_generate=decodekit_generate)

    assert (3, 18) == found.shape


class TestDraftFields:
    def test_lookup(self) -> None:
        """Its fields make a drafter and its length; one that is given wins."""
        config = GenerationConfig(prompt_lookup_num_tokens=7, max_matching_ngram_size=3)
        found = drafting_of(config, {})

        assert (3, 7) == (found["drafter"].max_ngram, found["num_draft_tokens"])
        assert 2 == drafting_of(GenerationConfig(prompt_lookup_num_tokens=7), {})["drafter"].max_ngram
        given = {"drafter": PromptLookup(), "num_draft_tokens": 2}
        assert given == drafting_of(config, given)

    def test_confidence(self, decoder: StaticDecoder) -> None:
        """A threshold, with a draft model whose length is not given."""
        config = GenerationConfig(assistant_confidence_threshold=0.3, num_assistant_tokens=4)
        drafter = DraftModel(decoder)

        assert ConfidenceLength(4, 0.3) == drafting_of(config, {"drafter": drafter})["num_draft_tokens"]
        for given in (
            {},
            {"drafter": PromptLookup()},
            {"drafter": drafter, "num_draft_tokens": 2},
        ):
            assert given == drafting_of(config, given)
        assert {"drafter": drafter} == drafting_of(GenerationConfig(), {"drafter": drafter})

    def test_confidence_of_a_call(self, stock: PreTrainedModel, decoder: StaticDecoder) -> None:
        """The text is the model's own; the drafts end by their confidence."""
        draft = StaticDecoder(stock, batch_size=3, max_length=64, widths=(1, 5))
        options = {"assistant_confidence_threshold": 0.9, "num_assistant_tokens": 4}
        found = said(
            stock,
            custom_generate=decodekit_generate,
            decoder=decoder,
            drafter=DraftModel(draft),
            **options,
        )

        assert said(stock).tolist() == found.tolist()


def test_leans_on_this_private_method() -> None:
    """It tells the config's own processors from those that are given."""
    parameters = inspect.signature(GenerationMixin._get_logits_processor).parameters

    used = {"generation_config", "input_ids_seq_length", "encoder_input_ids", "device", "model_kwargs"}

    assert used <= set(parameters)


def test_greedy_sampler_leaves_filters_out(stock: PreTrainedModel, decoder: StaticDecoder) -> None:
    """With ``Greedy()`` a config that samples is read without temperature and filters."""
    found = said(
        stock,
        do_sample=True,
        temperature=0.3,
        sampler=Greedy(),
        decoder=decoder,
        custom_generate=decodekit_generate,
    )

    assert said(stock).tolist() == found.tolist()
