"""SpeculativeGenerator with the interface of transformers-neuronx."""

import copy
import pathlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from decodekit.decoding import Event, Generator, MaxLength, Sample
from decodekit.neuron_backend import StaticDecoder, compile_decoder
from decodekit.processors import Temperature
from decodekit.speculation import PromptLookup, SpeculativeGenerator as OurOrder
from decodekit.speculation.neuronx_speculative_generator import SpeculativeGenerator
from decodekit.testing import ScriptedDecoder, last_token

TinyModel = Callable[..., PreTrainedModel]
PAIR = pathlib.Path(__file__).parents[2] / "examples" / "pair"
PROMPTS = torch.tensor([[5, 9, 33, 2], [11, 5, 2, 60], [7, 7, 1, 0]])
COUNT_UP = torch.eye(8).roll(1, dims=1)


def perturbed(model: PreTrainedModel) -> PreTrainedModel:
    """A model that agrees with *model* now and then."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.02 * parameter.std() * torch.randn(parameter.shape, generator=generator))
    return other


def decoder(model: PreTrainedModel, rows: int) -> StaticDecoder:
    """An eager decoder that scores four columns."""
    return StaticDecoder(model, batch_size=rows, max_length=64, widths=(1, 4, 16), scored_width=4)


def test_the_guides_own_snippet(capsys: pytest.CaptureFixture[str]) -> None:
    """The guide's example runs unchanged, imports and models aside, and gives the target's greedy text."""
    shape = {"max_length": 256, "batch_size": 1, "target": "eager", "dtype": "float32"}
    draft_neuron_model = compile_decoder(PAIR / "draft", widths=(1, 2, 64), scored_width=1, **shape)
    target_neuron_model = compile_decoder(PAIR / "target", widths=(1, 4, 64), scored_width=4, **shape)

    # Initialize tokenizer and text prompt
    tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
    prompt = "Hello, I'm a generative AI language model."
    input_ids = tokenizer(prompt, return_tensors="pt").input_ids

    # Create SpeculativeGenerator
    spec_gen = SpeculativeGenerator(draft_neuron_model, target_neuron_model, 4)

    # Call speculative sampling on given input
    response = spec_gen.sample(
        input_ids=input_ids,
        sequence_length=30,
    )

    # Decode the response
    generated_text = tokenizer.decode(response[0])
    print(f"\nDecoded tokens: {generated_text}")

    model = AutoModelForCausalLM.from_pretrained(PAIR / "target", dtype=torch.float32)
    mask = torch.ones_like(input_ids)
    expected = model.generate(input_ids, attention_mask=mask, do_sample=False, max_length=30, eos_token_id=-1)

    assert (1, 30) == tuple(response.shape)
    assert expected.tolist() == response.tolist()
    assert prompt in capsys.readouterr().out


class TestSample:
    @pytest.mark.parametrize("rows", [1, 3])
    def test_equals_plain_decoding_and_transformers(self, rows: int, tiny_model: TinyModel) -> None:
        """One row and three: the target's greedy text, whatever the draft."""
        model = tiny_model("llama")
        target, prompts = decoder(model, rows), PROMPTS[:rows]
        expected = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_length=40, pad_token_id=0
        )
        drafts = [decoder(perturbed(model), rows), decoder(tiny_model("qwen2"), rows), PromptLookup()]
        for draft in drafts:
            response = SpeculativeGenerator(draft, target, 4).sample(prompts, sequence_length=40)

            assert expected.tolist() == response.tolist()
        plain = Generator(target, stop=MaxLength(40))(prompts)

        assert expected.tolist() == plain.sequences

    def test_rows_end_on_their_own(self, tiny_model: TinyModel) -> None:
        """An ended row is padded while the others continue, as in transformers."""
        model = tiny_model("llama")
        spec_gen = SpeculativeGenerator(decoder(perturbed(model), 3), decoder(model, 3))
        endless = spec_gen.sample(PROMPTS, 40)
        ends = [int(endless[0, 9]), int(endless[1, 17])]
        expected = model.generate(
            PROMPTS,
            attention_mask=torch.ones_like(PROMPTS),
            do_sample=False,
            max_length=40,
            pad_token_id=60,
            eos_token_id=ends,
        )
        response = spec_gen.sample(PROMPTS, 40, eos_token_id=ends, pad_token_id=60)

        assert (3, 40) == tuple(response.shape)
        assert expected.tolist() == response[:, : expected.shape[1]].tolist()
        assert (response[:, expected.shape[1] :] == 60).all()
        assert len({row.index(60, 4) for row in response.tolist() if 60 in row[4:]}) > 1

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_a_mask_marks_a_rows_own_tokens(self, side: str, tiny_model: TinyModel) -> None:
        """Padding on either side is dropped: each row equals that row alone."""
        model = tiny_model("llama")
        ragged = [[5, 9, 33, 2], [11], [7, 0]]
        gaps = [[60] * (4 - len(row)) for row in ragged]
        rows = [gap + row if side == "left" else row + gap for gap, row in zip(gaps, ragged, strict=True)]
        own = [[0] * len(gap) + [1] * len(row) for gap, row in zip(gaps, ragged, strict=True)]
        mask = torch.tensor(own if side == "left" else [row[::-1] for row in own])
        spec_gen = SpeculativeGenerator(decoder(perturbed(model), 3), decoder(model, 3))
        response = spec_gen.sample(torch.tensor(rows), 30, attention_mask=mask)
        for row, prompt in enumerate(ragged):
            assert spec_gen.sample(torch.tensor([prompt]), 30)[0].tolist() == response[row].tolist()

    def test_samples_with_a_sampler(self, tiny_model: TinyModel) -> None:
        """With processors and a sampler the text equals plain decoding."""
        model = tiny_model("llama")
        parts: dict[str, Any] = {"processors": Temperature(0.8), "sampler": Sample(seed=7)}
        target = decoder(model, 3)
        response = SpeculativeGenerator(decoder(perturbed(model), 3), target, **parts).sample(PROMPTS, 30)

        assert Generator(target, stop=MaxLength(30), **parts)(PROMPTS).sequences == response.tolist()

    def test_the_last_token_needs_no_position(self) -> None:
        """A row may be one token longer than the target has positions."""
        target = ScriptedDecoder(COUNT_UP, max_length=5, widths=(1, 4), scored_width=4, line=last_token)
        response = SpeculativeGenerator(PromptLookup(), target).sample(torch.tensor([[1]]), 6)

        assert [[1, 2, 3, 4, 5, 6]] == response.tolist()

    def test_tells_a_streamer(self) -> None:
        """Ours gets every event; one of transformers' gets the prompt and then every token once."""

        class Ours:
            def __init__(self) -> None:
                self.ids: list[int] = []

            def put_event(self, event: Event) -> None:
                self.ids += event.ids

            def put(self, ids: torch.Tensor) -> None:
                self.ids += ids.flatten().tolist()

            def end(self) -> None:
                self.ids.append(-1)

        class Theirs(Ours):
            put_event = None

        target = ScriptedDecoder(COUNT_UP, line=last_token)
        draft = ScriptedDecoder(COUNT_UP, line=last_token)
        told = []
        for streamer in (Ours(), Theirs()):
            SpeculativeGenerator(draft, target).sample(torch.tensor([[1]]), 8, streamer=streamer)
            told.append(streamer.ids)

        assert [[2, 3, 4, 5, 6, 7, 0, -1], [1, 2, 3, 4, 5, 6, 7, 0, -1]] == told


class TestRefusals:
    def test_are_told_to_the_streamer(self) -> None:
        """At whose other end a consumer may wait."""
        told: list[BaseException] = []
        target = ScriptedDecoder(COUNT_UP, widths=(1, 4), scored_width=4, line=last_token)
        streamer = SimpleNamespace(put_event=told.append, end=lambda: None, fail=told.append)
        with pytest.raises(ValueError, match="more than the longest prompt's 3"):
            SpeculativeGenerator(target, target, 4).sample(torch.tensor([[1, 2, 3]]), 3, streamer=streamer)

        assert [ValueError] == [type(error) for error in told]

    def test_counts_k_as_there(self) -> None:
        """The target scores at most k columns; k = 1 is plain decoding."""
        target = ScriptedDecoder(COUNT_UP, widths=(1, 4), scored_width=4, line=last_token)
        for k in (1, 4):
            SpeculativeGenerator(target, target, k).sample(torch.tensor([[1]]), 9)
        with pytest.raises(ValueError, match="at most 3"):
            SpeculativeGenerator(target, target, 5)

    @pytest.mark.parametrize("k", [0, True, 2.0])
    def test_refuses_another_k(self, k: Any) -> None:
        """A whole number, at least 1."""
        target = ScriptedDecoder(COUNT_UP)
        with pytest.raises((TypeError, ValueError), match="'k' must be"):
            SpeculativeGenerator(target, target, k)

    @pytest.mark.parametrize(
        ("change", "error", "match"),
        [
            ({"sequence_length": 3}, ValueError, "more than the longest prompt's 3 and at most 65"),
            ({"sequence_length": 66}, ValueError, "got 66"),
            ({"sequence_length": 9.0}, TypeError, "'sequence_length' must be a whole number"),
            ({"pad_token_id": None}, TypeError, "'pad_token_id' must be a whole number"),
            ({"input_ids": torch.tensor([1, 2])}, ValueError, r"\[batch, length\]: got \[2\]"),
            ({"input_ids": torch.tensor([[1.0]])}, TypeError, "must be integers"),
            ({"input_ids": None}, TypeError, "must be integers"),
            ({"attention_mask": torch.ones(1, 2)}, ValueError, r"\[1, 3\]: got \[1, 2\]"),
            ({"attention_mask": torch.zeros(1, 3)}, ValueError, "prompt 0 must have 1 to"),
            ({"attention_mask": torch.tensor([[1, 0, 1]])}, ValueError, "zeros for padding before or after"),
            ({"eos_token_id": "no"}, TypeError, "token id"),
            ({"output_logits": True}, TypeError, "output_logits"),
        ],
    )
    def test_refuses_what_it_cannot_do(self, change: dict[str, Any], error: Any, match: str) -> None:
        """Arguments without effect are refused by name."""
        target = ScriptedDecoder(COUNT_UP)
        arguments = {"input_ids": torch.tensor([[1, 2, 3]]), "sequence_length": 9, **change}
        with pytest.raises(error, match=match):
            SpeculativeGenerator(target, target).sample(**arguments)

    def test_our_own_names_the_class_with_their_order(self) -> None:
        """Given (draft, target, k), our message names the adapter; (target, drafter, k) is ours."""
        decoder = ScriptedDecoder(COUNT_UP, line=last_token)
        with pytest.raises(TypeError, match=r"decodekit\.speculation\.neuronx_speculative_generator"):
            OurOrder(decoder, decoder, 4)

        assert 3 == OurOrder(decoder, PromptLookup(), 3).num_draft_tokens
