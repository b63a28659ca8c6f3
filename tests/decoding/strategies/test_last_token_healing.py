"""The rule of transformers' token healing."""

import functools
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.decoding.strategies.last_token_healing import heal_last_tokens
from decodekit.neuron_backend import compile_decoder
from decodekit.testing import ScriptedDecoder

from ...speculation.drafters.tokenizers_for_drafts import byte_level, tokenizer, wrapped


@functools.cache
def known() -> Any:
    """A byte-level tokenizer that adds nothing before a text, with padding on the left."""
    made = wrapped(byte_level(420), eos="<|end|>")
    # transformers needs a beginning of sequence, which need not come before a text.
    made.add_special_tokens({"pad_token": "<|pad|>", "bos_token": "<|start|>"})
    made.padding_side = "left"
    return made


@functools.cache
def model() -> Any:
    """A small random model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(known()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.5,
        pad_token_id=known().pad_token_id,
    )
    return LlamaForCausalLM(config).double().eval()


@functools.cache
def generator() -> Generator:
    decoder = compile_decoder(model(), target="eager", max_length=64, widths=(1, 16))
    return Generator(decoder, stop=MaxNewTokens(5), tokenizer=known())


TEXTS = ("The quick brown fo", "de", "lazy dogs. How m", "def f(x):", "Hund s", " the t ")


class TestHealLastTokens:
    @pytest.mark.parametrize("text", TEXTS)
    def test_equals_transformers(self, text: str) -> None:
        """Prompt and continuation, where its search finds the last token."""
        encoded = known()(text, return_tensors="pt")
        options = {"max_new_tokens": 5, "do_sample": False, "token_healing": True, "tokenizer": known()}

        expected = model().generate(**encoded, **options)[0].tolist()

        healed = heal_last_tokens(generator(), [text])
        assert expected == generator()(healed).sequences[0]

    def test_equals_transformers_in_a_batch(self) -> None:
        """Each row by itself, whatever the padding."""
        texts = list(TEXTS[:1] + TEXTS[2:4])
        encoded = known()(texts, return_tensors="pt", padding=True)
        options = {"max_new_tokens": 5, "do_sample": False, "token_healing": True, "tokenizer": known()}

        rows = model().generate(**encoded, **options).tolist()

        expected = [[index for index in row if index != known().pad_token_id] for row in rows]
        assert expected == generator()(heal_last_tokens(generator(), texts)).sequences

    def test_some_are_replaced(self) -> None:
        """The comparison is not of prompts that stay as they are."""
        healed = heal_last_tokens(generator(), TEXTS)

        assert any(ids != known()(text.strip())["input_ids"] for ids, text in zip(healed, TEXTS, strict=True))

    def test_a_last_token_with_a_space(self) -> None:
        """Replaced by the longer token that begins with it, which transformers does not find."""
        with_bos = tokenizer("bytes-bos")
        space_w = with_bos.convert_tokens_to_ids("Ġw")
        longer = with_bos.convert_tokens_to_ids("Ġwo")
        table = torch.zeros(1, len(with_bos))
        table[0, longer] = 2.0
        small = Generator(ScriptedDecoder(table), tokenizer=with_bos)

        ids = heal_last_tokens(small, ["much w"])[0]

        assert space_w == with_bos("much w")["input_ids"][-1]
        assert [*with_bos("much w")["input_ids"][:-1], longer] == ids

    @pytest.mark.parametrize("texts", ["http", [5], None, ["a", None]])
    def test_refuses_what_are_no_texts(self, texts: Any) -> None:
        """A single text too: it would be healed letter by letter."""
        with pytest.raises(TypeError, match="'texts' must be several texts: got"):
            heal_last_tokens(generator(), texts)

    def test_a_prompt_of_one_token_is_chosen_anew_at_the_beginning(self) -> None:
        """After the beginning of sequence, which stays; without one the prompt stays."""
        with_bos = tokenizer("bytes-bos")
        pairs = (name for name in with_bos.get_vocab() if len(name) == 2)
        longer = min(name for name in pairs if name.isascii() and name.isalpha())
        table = torch.zeros(1, len(with_bos))
        table[0, with_bos.convert_tokens_to_ids(longer)] = 3.0
        small = Generator(ScriptedDecoder(table), tokenizer=with_bos)

        healed = heal_last_tokens(small, [longer[0]])[0]

        assert ["<s>", longer] == with_bos.convert_ids_to_tokens(healed)
        assert [known()("d")["input_ids"]] == heal_last_tokens(generator(), ["d"])

    def test_needs_a_tokenizer(self) -> None:
        """It begins with the texts."""
        with pytest.raises(ValueError, match="'generator' must have a tokenizer"):
            heal_last_tokens(Generator(ScriptedDecoder(torch.zeros(1, 5))), ["a"])
