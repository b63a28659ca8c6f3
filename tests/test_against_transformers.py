"""Greedy text equals that of ``transformers.generate``."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.convert_frame
import torch._inductor
from transformers import PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import StaticDecoder
from decodekit.processors import MinNewTokens, NoRepeatNgram, RepetitionPenalty
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
        fast = SpeculativeGenerator(decoder, PromptLookup(), stop=MaxNewTokens(40))(prompts)

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

    # The counter counts.
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
    """A history-dependent processor gives the text that transformers' own gives, with a draft as well."""
    model = tiny_model("llama")
    decoder = StaticDecoder(model, max_length=96, widths=(1, 5, 16))
    options = {"do_sample": False, "max_new_tokens": 40, "pad_token_id": 0, **theirs}
    expected = model.generate(torch.tensor(PROMPTS[:1]), attention_mask=torch.ones(1, 37).long(), **options)
    text = expected[0, 37:].tolist()
    fast = SpeculativeGenerator(decoder, PromptLookup(), processors=ours, stop=MaxNewTokens(40))

    assert text == fast(PROMPTS[0]).ids[0][: len(text)]
