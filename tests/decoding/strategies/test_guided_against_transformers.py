"""Guidance equals that of ``transformers.generate``."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.decoding import Batcher, Combined, Generator, Guided, History, Logprobs, MaxNewTokens
from decodekit.neuron_backend.static_decoder import StaticDecoder
from decodekit.processors import RepetitionPenalty, Temperature, TopK
from decodekit.speculation import DraftModel, PromptLookup, SuffixAutomaton

PROMPTS = [list(range(3, 30)), [7], [11, 5, 2, 60, 8, 8, 1]]
NEGATIVES = {"last": None, "one": [[9, 9, 30]] * 3, "each": [[4], [9, 9, 30, 31, 2, 2], [5, 17]]}
COUNT = 24


@attrs.frozen(eq=False)
class FromTexts:
    """Sampler that returns the tokens of given texts, one a row."""

    texts: list[list[int]]

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        tokens = [
            [text[min(int(length), len(text) - 1)] for length in lengths]
            for text, lengths in zip(self.texts, history.length, strict=True)
        ]
        return torch.tensor(tokens)


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Left-padded ids and their mask."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    return ids, torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])


def theirs(model: PreTrainedModel, scale: float, negative: list[list[int]] | None, **options: Any) -> Any:
    """What ``generate`` returns."""
    ids, mask = padded(PROMPTS)
    if negative is not None:
        options["negative_prompt_ids"], options["negative_prompt_attention_mask"] = padded(negative)
    return model.generate(
        ids,
        attention_mask=mask,
        guidance_scale=scale,
        max_new_tokens=COUNT,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


def decoder_of(model: PreTrainedModel, rows: int = 6) -> StaticDecoder:
    """Eager, of so many rows."""
    return StaticDecoder(model, batch_size=rows, max_length=96, widths=(1, 5, 16), scored_width=5)


@pytest.mark.parametrize("scale", [0.5, 1.5, 3.0])
@pytest.mark.parametrize("kind", NEGATIVES)
def test_greedy(kind: str, scale: float, tiny_model: Callable[..., PreTrainedModel]) -> None:
    """Ragged rows in float64, plain, with every kind of drafter, and as requests of a batcher."""
    model, draft = tiny_model("llama", torch.float64), tiny_model("qwen2", torch.float64)
    negative = NEGATIVES[kind]
    expected = theirs(model, scale, negative, do_sample=False).sequences[:, max(map(len, PROMPTS)) :].tolist()
    given = NEGATIVES["one"][0] if kind == "one" else negative  # type: ignore[index]
    guided = Guided(decoder_of(model), scale, given)
    drafters = [None, PromptLookup(), SuffixAutomaton(), DraftModel(decoder_of(draft, 3))]
    for drafter in drafters:
        assert expected == Generator(guided, drafter=drafter, stop=MaxNewTokens(COUNT))(PROMPTS).ids
    if kind != "each":
        batcher = Batcher(Guided(decoder_of(model, 4), scale, given))
        parts = Generator(guided, drafter=PromptLookup(), stop=MaxNewTokens(COUNT)).parts
        handles = [batcher.submit(parts, prompt) for prompt in PROMPTS]

        assert expected == [handle.result().ids[0] for handle in handles]


@pytest.mark.parametrize("kind", NEGATIVES)
def test_scores_along_sampled_texts(kind: str, tiny_model: Callable[..., PreTrainedModel]) -> None:
    """With penalty, temperature and top-k after the guidance, along the text that transformers sampled."""
    model, negative = tiny_model("llama", torch.float64), NEGATIVES[kind]
    torch.manual_seed(0)
    expected = theirs(model, 1.7, negative, do_sample=True, repetition_penalty=1.3, temperature=0.7, top_k=9)
    new = expected.sequences[:, max(map(len, PROMPTS)) :].tolist()
    generate = Generator(
        Guided(decoder_of(model), 1.7, negative),
        # Theirs sees the padding as tokens; ours has none.
        processors=RepetitionPenalty(1.3) | Temperature(0.7) | TopK(9),
        sampler=FromTexts([prompt + text for prompt, text in zip(PROMPTS, new, strict=True)]),
        drafter=PromptLookup(),
        stop=MaxNewTokens(COUNT),
    )
    result = generate(PROMPTS, logprobs=Logprobs(3, "processed"))
    scores = torch.stack(expected.scores, dim=1).double().log_softmax(dim=-1)

    assert new == result.ids
    assert result.logprobs is not None
    for row, logprobs in enumerate(result.logprobs):
        for column, one in enumerate(logprobs):
            top = scores[row, column].topk(3).values.tolist()

            assert float(scores[row, column, one.id]) == pytest.approx(one.logprob, abs=1e-4)
            assert top == pytest.approx([logprob for _, logprob in one.top], abs=1e-4)


def test_an_ensemble_under_guidance(tiny_model: Callable[..., PreTrainedModel]) -> None:
    """Guidance of a combined decoder equals the equation over two stock models."""
    models = [tiny_model(name, torch.float64) for name in ("llama", "qwen2")]
    guided = Guided(Combined([decoder_of(model, 2) for model in models]), 1.5, [9, 30])
    ids, prompt = [], PROMPTS[2]

    def mean(tokens: list[int]) -> Tensor:
        with torch.no_grad():
            logits = [model(torch.tensor([tokens])).logits[0, -1] for model in models]
        return torch.stack(logits).log_softmax(dim=-1).mean(dim=0).log_softmax(dim=-1)

    for _ in range(12):
        towards, away = mean(prompt + ids), mean([9, 30, *ids])
        ids.append(int((away + 1.5 * (towards - away)).argmax()))

    assert [ids] == Generator(guided, stop=MaxNewTokens(12))([prompt]).ids
    assert [ids] == Generator(guided, drafter=PromptLookup(), stop=MaxNewTokens(12))([prompt]).ids
