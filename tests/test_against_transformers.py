"""Greedy text equals that of ``transformers.generate``."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
import torch._dynamo.convert_frame
import torch._inductor
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.decoding import Generator, History, Logprobs, MaxNewTokens
from decodekit.neuron_backend import StaticDecoder
from decodekit.processors import MinNewTokens, NoRepeatNgram, RepetitionPenalty, Temperature, TopK
from decodekit.speculation import PromptLookup, SpeculativeGenerator

ARCHITECTURES = (
    "llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "opt", "phi", "mixtral", "gemma2",
)  # fmt: skip
PROMPTS = [list(range(3, 40)), [7], [11, 5, 2, 60, 8, 8, 1]]
Stock = Callable[..., list[list[int]]]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy(name: str, tiny_model: Callable[..., PreTrainedModel], stock: Stock) -> None:
    """Ragged rows, well beyond sliding windows of 16, plain and with a draft."""
    model = tiny_model(name)
    decoder = StaticDecoder(model, batch_size=3, max_length=96, widths=(1, 5, 16))
    expected = stock(model, PROMPTS, 48)

    assert expected == Generator(decoder, stop=MaxNewTokens(48))(PROMPTS).ids
    assert expected == SpeculativeGenerator(decoder, PromptLookup(), stop=MaxNewTokens(48))(PROMPTS).ids


@pytest.mark.parametrize("name", ["compiled_llama", "compiled_gemma2"])
def test_compiled(
    name: str,
    request: pytest.FixtureRequest,
    tiny_model: Callable[..., PreTrainedModel],
    stock: Stock,
) -> None:
    """The same through compiled programs."""
    decoder = request.getfixturevalue(name)
    prompts = [PROMPTS[2], PROMPTS[1]]
    expected = stock(tiny_model(name.removeprefix("compiled_")), prompts, 40)

    assert expected == Generator(decoder, stop=MaxNewTokens(40))(prompts).ids
    if decoder.shape.scored_width == 5:
        fast = SpeculativeGenerator(decoder, PromptLookup(), num_draft_tokens=4, stop=MaxNewTokens(40))(
            prompts
        )

        assert expected == fast.ids
        assert sum(fast.statistics.accepted) > 0


def test_nothing_compiles_after_construction(
    compiled_llama: StaticDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of many lengths, plain and with a draft: no program is compiled and no graph is traced."""
    compiled: list[object] = []
    for module, name in (
        (torch._inductor, "aoti_compile_and_package"),
        (torch._dynamo.convert_frame, "_compile"),
    ):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, f=original, **k: (compiled.append(f), f(*a, **k))[1])
    for length in (1, 4, 5, 6, 23):
        for drafter in (None, PromptLookup()):
            Generator(compiled_llama, drafter=drafter, stop=MaxNewTokens(9))([[3] * length, [5]])

    assert [] == compiled

    # The counter works.
    torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1))

    assert 1 == len(compiled)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RepetitionPenalty(1.3), {"repetition_penalty": 1.3}),
        (NoRepeatNgram(2), {"no_repeat_ngram_size": 2}),
        (MinNewTokens(20, [13]), {"min_new_tokens": 20, "eos_token_id": 13}),
    ],
    ids=["repetition-penalty", "no-repeat-ngram", "min-new-tokens"],
)
def test_processors(ours: Any, theirs: dict[str, Any], tiny_model: Callable[..., PreTrainedModel]) -> None:
    """A history-dependent processor gives the same text as transformers' own, also with a draft."""
    model = tiny_model("llama")
    decoder = StaticDecoder(model, max_length=96, widths=(1, 5, 16))
    options = {"do_sample": False, "max_new_tokens": 40, "pad_token_id": 0, **theirs}
    expected = model.generate(torch.tensor(PROMPTS[:1]), attention_mask=torch.ones(1, 37).long(), **options)
    text = expected[0, 37:].tolist()
    fast = SpeculativeGenerator(decoder, PromptLookup(), processors=ours, stop=MaxNewTokens(40))

    assert text == fast(PROMPTS[0]).ids[0][: len(text)]


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_logprobs(name: str, tiny_model: Callable[..., PreTrainedModel]) -> None:
    """Raw and processed ones equal ``output_logits`` and ``output_scores``, also with a draft."""
    model = tiny_model(name, torch.float64)
    ours: dict[str, Any] = {
        "processors": RepetitionPenalty(1.3) | Temperature(0.7) | TopK(9),
        "stop": MaxNewTokens(25),
    }
    theirs = {"repetition_penalty": 1.3, "temperature": 0.7, "top_k": 9, "do_sample": True}
    decoder = StaticDecoder(model, max_length=96, widths=(1, 5, 16))
    for prompt in PROMPTS:
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)).long(),
            max_new_tokens=25,
            pad_token_id=0,
            output_logits=True,
            output_scores=True,
            return_dict_in_generate=True,
            **theirs,
        )
        new = expected.sequences[0, len(prompt) :].tolist()
        for stage, logits in (("raw", expected.logits), ("processed", expected.scores)):
            distribution = torch.cat(logits).double().log_softmax(dim=-1)
            for drafter in (None, PromptLookup()):
                # transformers' sampled tokens, instead of ours.
                generate = Generator(decoder, sampler=FromText(tuple(prompt + new)), drafter=drafter, **ours)
                result = generate(prompt, logprobs=Logprobs(4, stage))

                assert [new] == result.ids
                assert result.logprobs is not None
                for logprob, row in zip(result.logprobs[0], distribution, strict=True):
                    assert float(row[logprob.id]) == pytest.approx(logprob.logprob, abs=1e-5)
                    assert row.topk(4).values.tolist() == pytest.approx(
                        [value for _, value in logprob.top], abs=1e-5
                    )
                    assert all(float(row[token]) == pytest.approx(p, abs=1e-5) for token, p in logprob.top)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_prompt_logprobs(name: str, tiny_model: Callable[..., PreTrainedModel]) -> None:
    """Equal to one forward of the stock model, ragged and chunked, the second time from the cache."""
    model = tiny_model(name)
    decoder = StaticDecoder(model, batch_size=3, max_length=96, widths=(1, 5, 16), scored_width=5)
    generate = Generator(decoder, stop=MaxNewTokens(3))
    for _ in range(2):
        for prompt, logprobs in zip(
            PROMPTS, generate.prompt_logprobs(PROMPTS, logprobs=Logprobs(2)), strict=True
        ):
            distribution = model(torch.tensor([prompt])).logits[0].detach().double().log_softmax(dim=-1)
            expected = [float(distribution[i, token]) for i, token in enumerate(prompt[1:])]

            assert logprobs[0] is None
            assert expected == pytest.approx([one.logprob for one in logprobs[1:] if one], abs=1e-4)
            assert distribution[:-1].topk(2).indices.tolist() == [
                [token for token, _ in one.top] for one in logprobs[1:] if one
            ]
        generate(PROMPTS)


@attrs.frozen(eq=False)
class FromText:
    """Sampler that returns the tokens of a given text."""

    text: tuple[int, ...]

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        return torch.tensor(self.text)[history.length.clamp(max=len(self.text) - 1)]
