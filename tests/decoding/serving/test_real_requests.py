"""Requests of a real model on the CPU target: not one token differs from the request alone."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from decodekit.decoding import Batcher, Generator, Greedy, Logprobs, MaxNewTokens, Sample
from decodekit.pretrained import ModelUnavailable, fetch_smollm2
from decodekit.processors import NoRepeatNgram, RepetitionPenalty, Temperature, TopP
from decodekit.speculation import PromptLookup, SuffixAutomaton

pytestmark = [pytest.mark.real, pytest.mark.slow]

SYSTEM = (
    "You are a careful assistant. Answer in one short paragraph, and quote the words that you were asked."
)
QUESTIONS = (
    "What is the capital of France?",
    "Repeat this list: apple, pear, plum, apple, pear, plum, apple, pear.",
    "Write a JSON object with the keys name, size and colour.",
    "Continue: def fibonacci(n):",
    "Why is the sky blue?",
)
"""Some of the answers repeat what can be drafted."""


@pytest.fixture(scope="module", params=[None, "int8"], ids=["bfloat16", "int8"])
def generator(request: pytest.FixtureRequest) -> Generator:
    """Compiled, of four rows."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        model = fetch_smollm2(cache / "decodekit" / "models")
    except ModelUnavailable as error:
        pytest.skip(str(error))
    return Generator.from_pretrained(
        model,
        target="cpu",
        dtype=torch.bfloat16,
        weights=request.param,
        batch_size=4,
        widths=(1, 5, 64),
        max_length=256,
        progress=False,
    )


def parts_of(generator: Generator, dice: random.Random) -> Generator:
    """Random parts on the same decoder."""
    options: dict[str, Any] = {
        "processors": dice.choice(
            [None, Temperature(0.8) | TopP(0.9), RepetitionPenalty(1.2), NoRepeatNgram(3)]
        ),
        "sampler": dice.choice([Greedy(), Sample(seed=dice.randrange(9))]),
        "stop": MaxNewTokens(dice.randint(5, 40)),
    }
    if dice.random() < 0.7:
        drafter = dice.choice([PromptLookup(), SuffixAutomaton()])
        options |= {"drafter": drafter, "num_draft_tokens": dice.randint(1, 4)}
    return Generator(generator.decoder, tokenizer=generator.tokenizer, **options)


@pytest.mark.filterwarnings("ignore::decodekit.decoding.NoEffectWarning")
@pytest.mark.parametrize("prefill_width", [None, 19])
def test_requests_equal_their_calls(generator: Generator, prefill_width: int | None) -> None:
    """With chunks of prompts, reused beginnings, drafts, cancellations; ids, text and log-probabilities."""
    dice = random.Random(3)
    batcher = Batcher(generator.decoder, prefill_width=prefill_width)
    asked = []
    for number in range(14):
        parts = parts_of(generator, dice)
        chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": dice.choice(QUESTIONS)}]
        handle = batcher.submit(parts.parts, [chat], random_stream=number, logprobs=Logprobs(1))
        asked.append((parts, chat, number, handle, dice.random() < 0.1))
        for _ in range(dice.randint(0, 9)):
            batcher.step()
    for _, _, _, handle, cancelled in asked:
        if cancelled:
            handle.cancel()
    results = [handle.result() for _, _, _, handle, _ in asked]

    assert batcher.statistics.bit_exact
    assert sum(batcher.statistics.accepted) > 0
    assert batcher.statistics.reused > 14 * 10
    for (parts, chat, number, _, _), result in zip(asked, results, strict=True):
        alone = parts([chat], random_streams=[number], logprobs=Logprobs(1))
        if result.finish_reasons == ["cancelled"]:
            assert alone.ids[0][: len(result.ids[0])] == result.ids[0]
        else:
            assert (alone.ids, alone.text, alone.finishes) == (result.ids, result.text, result.finishes)
            assert alone.logprobs == result.logprobs
