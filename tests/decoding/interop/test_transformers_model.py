"""transformers' ``generate`` on a decoder equals ``generate`` on the stock model, in float64."""

import copy
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
    pipeline,
)

from decodekit.decoding import Generator, MaxNewTokens, TransformersModel
from decodekit.decoding.interop.cache_name import CACHE
from decodekit.neuron_backend import CompiledDecoder, StaticDecoder, compile_decoder, load_decoder
from decodekit.testing import ScriptedDecoder, last_token

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ012345678"
PAD = 0
Models = Callable[..., PreTrainedModel]


def letters() -> Any:
    """A tokenizer of 61 letters."""
    backend = Tokenizer(models.WordLevel({c: i for i, c in enumerate(LETTERS)}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="a", padding_side="left")


def padded(*rows: list[int]) -> dict[str, Tensor]:
    """Ids padded on the left, and the mask."""
    longest = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[PAD] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]),
    }


ONE = padded(list(range(3, 20)))
RAGGED = padded(list(range(3, 20)), [7], [11, 5, 2, 60, 8, 8, 1])
REPEATING = padded([5, 9, 2, 7, 5, 9, 2, 7, 5, 9, 2])


class Repeats(StoppingCriteria):
    """The newest token occurred before."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return (input_ids[:, :-1] == input_ids[:, -1:]).any(dim=-1)


MODES: dict[str, dict[str, Any]] = {
    "greedy": ONE,
    "ragged": RAGGED,
    "ends": {**RAGGED, "eos_token_id": [5, 9, 13, 30]},
    "mask-inferred": {"input_ids": RAGGED["input_ids"]},
    "holes-in-the-mask": {
        "input_ids": torch.tensor([[4, 9, 8, 7, 3]]),
        "attention_mask": torch.tensor([[1, 0, 1, 0, 1]]),
    },
    "sampled": {**RAGGED, "do_sample": True, "temperature": 0.8, "top_p": 0.9},
    "return-sequences": {**ONE, "do_sample": True, "num_return_sequences": 4},
    "beams": {**ONE, "num_beams": 4},
    "two-of-two-beams": {**padded([7, 1], [5]), "num_beams": 2, "num_return_sequences": 2},
    "beams-that-end": {**ONE, "num_beams": 3, "eos_token_id": [5, 9, 13, 30], "length_penalty": 0.3},
    "beam-sample": {**ONE, "num_beams": 3, "do_sample": True},
    "lookup": {**REPEATING, "prompt_lookup_num_tokens": 4},
    "wide-lookup": {**REPEATING, "prompt_lookup_num_tokens": 30},
    "sampled-lookup": {**REPEATING, "prompt_lookup_num_tokens": 4, "do_sample": True, "temperature": 0.2},
    "no-cache": {**RAGGED, "use_cache": False},
    "beams-without-cache": {**ONE, "num_beams": 2, "use_cache": False},
    "chunked-prefill": {**ONE, "prefill_chunk_size": 4},
    "ragged-chunks": {**RAGGED, "prefill_chunk_size": 4},
    "guidance": {**ONE, "guidance_scale": 1.5},
    "guidance-away-from": {
        **ONE,
        "guidance_scale": 2.0,
        "negative_prompt_ids": torch.tensor([[4, 9, 8]]),
    },
    "guidance-without-cache": {**ONE, "guidance_scale": 1.5, "use_cache": False},
    "penalties": {**RAGGED, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "allowed-prefixes": {**ONE, "prefix_allowed_tokens_fn": lambda row, ids: [3, 4, int(ids[-1]) // 2]},
    "stopping-criteria": {**RAGGED, "stopping_criteria": StoppingCriteriaList([Repeats()])},
    "stop-strings": {**RAGGED, "stop_strings": list("kBx9"), "tokenizer": letters()},
    "positions-given": {**ONE, "position_ids": torch.arange(17)[None]},
    "from-a-start-token": {"bos_token_id": 8},
}


@pytest.fixture(scope="module")
def stock(tiny_model: Models) -> PreTrainedModel:
    """The model, in float64."""
    return tiny_model("llama", torch.float64)


@pytest.fixture(scope="module")
def ours(stock: PreTrainedModel) -> TransformersModel:
    """The same behind a decoder of four rows, whose cache holds what earlier tests left."""
    return TransformersModel(StaticDecoder(stock, batch_size=4, max_length=64, widths=(1, 5, 16)))


def said(model: Any, **options: Any) -> Any:
    """What ``generate`` returns, from one state of torch's generator."""
    torch.manual_seed(5)
    return model.generate(**{"max_new_tokens": 14, "pad_token_id": PAD, "do_sample": False, **options})


@pytest.mark.parametrize("name", MODES)
def test_equals_the_stock_model(name: str, stock: PreTrainedModel, ours: TransformersModel) -> None:
    """Every mode gives the stock model's ids."""
    assert said(stock, **MODES[name]).tolist() == said(ours, **MODES[name]).tolist()


@pytest.mark.parametrize("name", ["ragged", "ends", "sampled", "beams", "lookup", "guidance"])
def test_scores_and_logits(name: str, stock: PreTrainedModel, ours: TransformersModel) -> None:
    """``output_scores`` and ``output_logits`` are the stock model's, those of ended rows included."""
    wanted = {"output_scores": True, "output_logits": True, "return_dict_in_generate": True}
    theirs, found = (said(model, **MODES[name], **wanted) for model in (stock, ours))

    assert theirs.sequences.tolist() == found.sequences.tolist()
    for field in ("scores", "logits"):
        assert len(theirs[field]) == len(found[field]) > 0
        for expected, actual in zip(theirs[field], found[field], strict=True):
            # Guidance takes what the stock model says of its second text as it is, in float64.
            torch.testing.assert_close(actual, expected.float())
    if name == "beams":
        torch.testing.assert_close(found.sequences_scores, theirs.sequences_scores)


@pytest.fixture(scope="module")
def small(stock: PreTrainedModel) -> PreTrainedModel:
    """A model that often agrees with the stock one: its weights with a little noise."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        draft = transformers.AutoModelForCausalLM.from_config(stock.config).double().eval()
        weights = {name: w + 0.02 * torch.randn_like(w) for name, w in stock.state_dict().items()}
    draft.load_state_dict(weights)
    return draft


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("assistant_is_ours", [False, True], ids=["stock-assistant", "our-assistant"])
@pytest.mark.parametrize("target_is_ours", [False, True], ids=["stock-target", "our-target"])
def test_assistants(
    target_is_ours: bool,
    assistant_is_ours: bool,
    sampled: bool,
    stock: PreTrainedModel,
    small: PreTrainedModel,
    ours: TransformersModel,
) -> None:
    """Each side may be a decoder; the ids are those of two stock models."""
    options = {**ONE, "do_sample": sampled, "max_new_tokens": 30}
    expected = said(stock, assistant_model=small, **options)
    draft = (
        TransformersModel(StaticDecoder(small, max_length=64, widths=(1, 5))) if assistant_is_ours else small
    )
    found = said(ours if target_is_ours else stock, assistant_model=draft, **options)

    assert expected.tolist() == found.tolist()


@pytest.mark.parametrize("assistant_is_ours", [False, True], ids=["stock-assistant", "our-assistant"])
@pytest.mark.parametrize("target_is_ours", [False, True], ids=["stock-target", "our-target"])
def test_assistant_of_another_vocabulary(
    target_is_ours: bool, assistant_is_ours: bool, stock: PreTrainedModel, ours: TransformersModel
) -> None:
    """Greedy, by the texts of both: the tokenizers say what either side's tokens are."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        sizes = {**stock.config.to_dict(), "vocab_size": 80}
        small = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).double().eval()
    draft = (
        TransformersModel(StaticDecoder(small, max_length=64, widths=(1, 5))) if assistant_is_ours else small
    )
    tokenizers = {"tokenizer": letters(), "assistant_tokenizer": letters()}
    target = ours if target_is_ours else stock
    found = said(target, assistant_model=draft, **tokenizers, **ONE)

    assert said(stock, **ONE).tolist() == found.tolist()


def test_streamer(stock: PreTrainedModel, ours: TransformersModel) -> None:
    """A streamer of transformers gets the text that it gets of the stock model."""

    def pieces(model: Any) -> list[str]:
        streamer = TextIteratorStreamer(letters(), skip_prompt=True, timeout=5.0)
        said(model, **ONE, streamer=streamer)
        return list(streamer)

    assert pieces(stock) == pieces(ours)


def test_pipeline(stock: PreTrainedModel, ours: TransformersModel) -> None:
    """``pipeline("text-generation")`` writes what it writes with the stock model."""
    texts = ["hello", "k"]

    def written(model: Any) -> Any:
        pipe = pipeline("text-generation", model=model, tokenizer=letters(), device="cpu")
        return pipe(texts, max_new_tokens=9, do_sample=False, batch_size=2)

    assert written(stock) == written(ours)


def test_a_tokenizer_of_its_own(stock: PreTrainedModel, ours: TransformersModel) -> None:
    """It is taken for stop strings and for the padding token."""
    model = TransformersModel(ours.decoder, letters())
    options = {**RAGGED, "stop_strings": list("kBx9"), "pad_token_id": None}

    assert said(stock, **MODES["stop-strings"]).tolist() == said(model, **options).tolist()


def test_a_cache_is_continued(stock: PreTrainedModel, ours: TransformersModel) -> None:
    """A second call with the first one's cache goes on as the stock model does."""

    def turns(model: Any) -> list[int]:
        first = said(model, **ONE, return_dict_in_generate=True)
        longer = torch.cat([first.sequences, torch.tensor([[4, 5, 6]])], dim=1)
        return said(model, input_ids=longer, **{CACHE: getattr(first, CACHE)})[0].tolist()

    assert turns(stock) == turns(ours)


def test_the_cache_has_either_name(ours: TransformersModel) -> None:
    """One at a time, whichever transformers is installed."""
    ids = ONE["input_ids"]
    whole = ours(ids).logits[:, 4:]
    for name in ("cache", "past_key_values"):
        record = getattr(ours(ids[:, :4]), CACHE)

        torch.testing.assert_close(whole, ours(ids[:, 4:], **{name: record}).logits)

    with pytest.raises(ValueError, match="one argument: got both"):
        ours(ids[:, 4:], cache=record, past_key_values=record)


def test_a_call_is_the_stock_models(stock: PreTrainedModel, ours: TransformersModel) -> None:
    """All columns of a long ragged batch, without padding's; and a loop with its cache."""
    theirs, found = stock(**RAGGED).logits.float(), ours(**RAGGED).logits
    seen = RAGGED["attention_mask"].bool()

    torch.testing.assert_close(found[seen], theirs[seen])
    assert not found[~seen].any()
    assert (3, 2, 61) == ours(**RAGGED, logits_to_keep=2).logits.shape

    cache, ids = None, ONE["input_ids"]
    for column in range(0, 17, 4):
        output = ours(ids[:, column : column + 4], **{CACHE: cache})
        cache = getattr(output, CACHE)

        expected = stock(ids[:, : column + 4]).logits[:, column:].float()
        torch.testing.assert_close(output.logits, expected)


def fed(decoder: Any) -> Iterator[int]:
    """How many tokens ``forward`` is given, call by call."""
    forward = decoder.forward
    counts: list[int] = []

    def counting(ids: Tensor, cache_pos: Tensor, **options: Any) -> Tensor:
        counts.append(int((ids >= 0).sum()))
        result: Tensor = forward(ids, cache_pos, **options)
        return result

    decoder.forward = counting
    return iter(counts)


@pytest.mark.parametrize(
    ("options", "prompts", "rows"),
    [
        (RAGGED, 25, 3),
        ({**ONE, "guidance_scale": 1.5}, 17 + 1, 2),
        ({**ONE, "num_beams": 4}, 4 * 17, 4),
    ],
    ids=["ragged", "guidance", "beams"],
)
def test_a_step_feeds_one_token_a_row(
    options: dict[str, Any], prompts: int, rows: int, stock: PreTrainedModel
) -> None:
    """Prompts once; with a second row guidance feeds neither text twice, and beams are copied."""
    decoder = CompiledDecoder(stock, batch_size=4, max_length=64, widths=(1, 5, 16))
    counts = fed(decoder)
    said(TransformersModel(decoder), **options)

    assert prompts + 13 * rows == sum(counts)


def test_shares_a_decoder(ours: TransformersModel) -> None:
    """A generator in between changes nothing."""
    generator = Generator(ours.decoder, stop=MaxNewTokens(14))
    expected = said(ours, **ONE)[0, 17:].tolist()

    assert expected == generator(ONE["input_ids"]).ids[0]
    assert expected == said(ours, **ONE)[0, 17:].tolist()


def test_any_decoder_will_do() -> None:
    """One that knows no model: its sizes are the config; and defaults may be given."""
    decoder = ScriptedDecoder(torch.eye(7).roll(1, dims=1), max_length=16, line=last_token)
    model = TransformersModel(decoder, generation_config=GenerationConfig(max_new_tokens=3))

    assert 7 == model.config.vocab_size
    assert [[1, 2, 3, 4]] == model.generate(torch.tensor([[1]])).tolist()


def test_a_loaded_decoder_knows_its_model(stock: PreTrainedModel, tmp_path: Path) -> None:
    """Its config, and the defaults of ``generate``; both may be given in their place."""
    folder = tmp_path / "decoder"
    model = copy.deepcopy(stock)
    model.generation_config = GenerationConfig(max_new_tokens=5, pad_token_id=PAD)
    compile_decoder(model, max_length=64, widths=(1, 5), target="eager", progress=False).save(folder)
    loaded = TransformersModel(load_decoder(folder))

    assert ("llama", 61) == (loaded.config.model_type, loaded.config.vocab_size)
    assert model.generate(**ONE).tolist() == loaded.generate(**ONE).tolist()
    given = GenerationConfig(max_new_tokens=2)
    assert (1, 19) == TransformersModel(loaded.decoder, generation_config=given).generate(**ONE).shape
    assert given.pad_token_id is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rows": ({**ONE, "num_beams": 5}, r"batch_size: got 5\. Compile it with batch_size=5"),
    "sequences": (
        {**RAGGED, "do_sample": True, "num_return_sequences": 2},
        r"at most 4 rows, the decoder's batch_size: got 6",
    ),
    "length": ({**ONE, "max_new_tokens": 49}, "at most 65, one more than the decoder's max_length: got 66"),
    "embeddings": (
        {"inputs_embeds": torch.zeros(1, 3, 8)},
        "got 'inputs_embeds'; a decoder is fed token ids",
    ),
    "typo": ({**ONE, "temprature": 0.3}, "got 'temprature'"),
    "attentions": ({**ONE, "output_attentions": True}, "got 'output_attentions'; .* logits alone"),
    "early-exit": ({**ONE, "assistant_early_exit": 1}, r"decoder\.early_exit\(layers\)"),
    "quantized": ({**ONE, "cache_implementation": "quantized"}, "its own cache"),
    "right-padding": (
        {"input_ids": torch.tensor([[3, 0]]), "attention_mask": torch.tensor([[1, 0]])},
        "padding_side='left'",
    ),
    "positions": ({**ONE, "position_ids": torch.arange(17)[None] + 1}, "'position_ids' must count"),
    "no-start-token": ({}, "bos_token_id"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, ours: TransformersModel) -> None:
    """By name, before anything is fed."""
    options, message = REFUSED[name]
    counts = fed(ours.decoder)
    with pytest.raises(ValueError, match=message):
        said(ours, **options)

    assert [] == list(counts)


def test_refuses_other_objects(ours: TransformersModel) -> None:
    """What is no decoder, cache, config or place."""
    with pytest.raises(TypeError, match="forward"):
        TransformersModel(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'config' must be a transformers"):
        TransformersModel(ours.decoder, config={})
    with pytest.raises(TypeError, match=f"'{CACHE}' must be what a TransformersModel returned"):
        said(ours, **ONE, **{CACHE: transformers.DynamicCache()})
    with pytest.raises(TypeError, match="whole numbers"):
        ours(torch.tensor([[0.5]]))
    with pytest.raises(ValueError, match=r"'attention_mask' must be \[1, 17\]"):
        ours(ONE["input_ids"], attention_mask=torch.ones(1, 3))
    for ids in ([[5, -1, 7]], [[5, 61, 7]]):
        with pytest.raises(
            ValueError, match=r"'input_ids' must be >= 0 and < 61, where 'attention_mask' is 1"
        ):
            ours(torch.tensor(ids))
    padded = ours(torch.tensor([[-1, 5, 7]]), attention_mask=torch.tensor([[0, 1, 1]]))
    assert torch.isfinite(padded.logits).all()
    with pytest.raises(ValueError, match="'input_ids' must be >= 0 and < 61"):
        ours(torch.tensor([[3]]), **{CACHE: padded[CACHE]})
    with pytest.raises(ValueError, match="device='cpu'"):
        ours.to("cuda")
    with pytest.raises(NotImplementedError, match="Batcher"):
        ours.generate_batch([[3]])

    assert ours.to("cpu") is ours.to(torch.float32) is ours.eval() is ours


def test_leans_on_these_private_methods() -> None:
    """Two are overridden, with the signatures of the transformers that the tests run with."""
    overridden = {
        "_validate_model_kwargs": ["self", "model_kwargs"],
        "_prepare_cache_for_generation": [
            "self", "generation_config", "model_kwargs", "generation_mode", "batch_size", "max_cache_length",
        ],
    }  # fmt: skip
    private = {name for name in vars(TransformersModel) if name.startswith("_") and not name.endswith("__")}

    assert ".".join(transformers.__version__.split(".")[:2]) in ("5.23", "5.24")
    assert {*overridden, "_is_stateful"} == private
    for name, parameters in overridden.items():
        for owner in (GenerationMixin, TransformersModel):
            assert parameters == list(inspect.signature(getattr(owner, name)).parameters)
