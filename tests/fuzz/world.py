"""The objects whose calls a campaign tries, each made anew for a case, with right arguments."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import attrs
import torch
import transformers

from decodekit.decoding import (
    Event,
    Generator,
    History,
    Logprobs,
    MaxNewTokens,
    Sample,
    Slots,
    Statistics,
)
from decodekit.decoding.token_feeder import Fed
from decodekit.processors import (
    KirchenbauerDetector,
    KirchenbauerWatermark,
    SynthIDDetector,
    SynthIDWatermark,
    Temperature,
    TopK,
    explain,
    from_generation_config,
    presets,
    to_generation_config,
    to_transformers,
    to_vllm,
)
from decodekit.speculation import PromptLookup, SpeculativeGenerator, Tree, check_exactness
from decodekit.streaming import Callback, server_sent_events
from decodekit.testing import ScriptedDecoder, check_decoder

from ..decoding.stopping.test_stop_strings import Pieces
from ..histories import history_of_rows


@attrs.frozen(eq=False)
class Call:
    """Something to call, with right arguments."""

    function: Callable[..., Any]
    right: dict[str, Any]
    documented: tuple[type[Exception], ...] = ()
    """What it may raise beside a TypeError or a ValueError."""

    def __call__(self, **given: Any) -> Any:
        """Call, and read what is returned to its end."""
        return plain(self.function(**given))


def plain(value: Any) -> str:
    """What a call returned, as text; streams are read."""
    if hasattr(value, "__anext__"):
        value = asyncio.run(read(value))
    elif hasattr(value, "__next__"):
        value = list(value)
    if hasattr(value, "finishes") and hasattr(value, "statistics"):
        value = (value.ids, value.text, value.finishes, value.logprobs)
    if isinstance(value, Fed):
        value = value.logits
    return repr(value)


async def read(events: AsyncIterator[Event]) -> list[Event]:
    """All events."""
    return [event async for event in events]


def scripted(batch: int = 2) -> ScriptedDecoder:
    """A decoder of 8 tokens."""
    table = torch.randn(11, 8, generator=torch.Generator().manual_seed(1))
    return ScriptedDecoder(table, batch, 16, tree_widths=(5,))


def generator_calls(decoder: ScriptedDecoder, speculative: bool) -> dict[str, Call]:
    """The calls of a generator."""
    parts: dict[str, Any] = {
        "processors": Temperature(0.7) | TopK(4),
        "sampler": Sample(seed=3),
        "stop": MaxNewTokens(5),
        "tokenizer": Pieces(),
    }
    generator = (
        SpeculativeGenerator(decoder, PromptLookup(), **parts) if speculative else Generator(decoder, **parts)
    )
    request = {"prompts": [[1, 2, 3], [4]], "random_streams": [0, 9]}
    logged = {**request, "logprobs": Logprobs(2)}
    return {
        "call": Call(generator, {**logged, "streamer": Callback(lambda event: None)}),
        "stream": Call(generator.stream, logged),
        "astream": Call(generator.astream, logged),
        "prompt_logprobs": Call(generator.prompt_logprobs, logged),
        "logits": Call(generator.logits, request),
    }


def slots_calls(decoder: ScriptedDecoder) -> dict[str, Call]:
    """The calls of a decoder and its slots."""
    slots = Slots.of(decoder)
    history = history_of_rows([[1, 2, 3], [4]], capacity=4)
    length, need = torch.tensor([3, 1]), torch.tensor([1, 1])
    return {
        "Slots.feed": Call(
            slots.feed,
            {"history": history, "length": length, "need": need, "most": None, "exact_width": False},
        ),
        "forward": Call(
            decoder.forward, {"ids": torch.tensor([[1], [2]]), "cache_pos": torch.zeros(2).long()}
        ),
    }


def conversions() -> dict[str, Call]:
    """From and to the settings of other systems."""
    config = transformers.GenerationConfig(do_sample=True, top_k=3, max_new_tokens=4)
    sampled = {"processors": Temperature(0.5), "sampler": Sample(1), "stop": MaxNewTokens(3)}
    llama_cpp = {"temp": 0.5, "top_k": 4, "top_p": 0.5, "dry_multiplier": 0.5, "dry_allowed_length": 3}
    return {
        "from_generation_config": Call(
            from_generation_config, {"config": config, "seed": 1, "tokenizer": Pieces(), "ignore": ["x"]}
        ),
        "to_generation_config": Call(to_generation_config, sampled),
        "presets.llama_cpp": Call(presets.llama_cpp, llama_cpp),
        "presets.vllm": Call(presets.vllm, {"temperature": 0.5, "top_k": 4, "top_p": 0.5, "min_p": 0.1}),
        "to_transformers": Call(lambda **given: bool(to_transformers(**given)), {"chain": TopK(3)}),
        "to_vllm": Call(
            lambda **given: to_vllm(**given).__name__,
            {"chain": TopK(3), "name": "Three", "base": object},
            (ImportError,),
        ),
    }


def readings() -> dict[str, Call]:
    """Detectors, explanations, statistics, texts and checks."""
    kirchenbauer = KirchenbauerDetector(KirchenbauerWatermark(vocab_size=8))
    synthid = SynthIDDetector(SynthIDWatermark([1, 2], ngram_len=2, sampling_table_size=64))
    texts = {"texts": [[1, 2, 3, 4], [5, 6, 7]], "lengths": [4, 2]}
    history = History(
        torch.zeros(1, 1, 4).long(), torch.ones(1, 1).long(), torch.ones(1).long(), torch.zeros(1).long()
    )
    logits = torch.tensor([[[0.5, 1.0, -1.0]]])
    statistics = Statistics()
    for row in range(3):
        statistics.record(3, 4, row, row)
    events = [Event(0, (1,), "x"), Event(0, (2,), "y")]
    return {
        "KirchenbauerDetector": Call(kirchenbauer, texts),
        "SynthIDDetector": Call(synthid, texts),
        "SynthIDDetector.evidence": Call(synthid.evidence, texts),
        "explain": Call(
            explain,
            {"chain": TopK(2), "logits": logits, "history": history, "tokenizer": Pieces(), "examples": 2},
        ),
        "interval": Call(statistics.mean_accepted_length_interval, {"confidence": 0.9}),
        "Tree.comb": Call(lambda first, second: Tree.comb(first, second), {"first": 2, "second": 3}),
        "Tree.of_children": Call(
            lambda first, second: Tree.of_children(first, second), {"first": 2, "second": 3}
        ),
        "server_sent_events": Call(server_sent_events, {"events": events}),
        "check_decoder": Call(
            check_decoder,
            {"decoder": scripted(), "tolerance": 1e-4, "seed": 0, "overflowing": ()},
            (AssertionError,),
        ),
        "check_exactness": Call(exactness, {"prompts": [[1]], "tolerance": 1e-9, "copies": 1}),
    }


def exactness(**given: Any) -> str:
    """The check of a generator of one token."""
    return str(
        check_exactness(lambda: Generator(tiny(), sampler=Sample(seed=0), stop=MaxNewTokens(1)), **given)
    )


def tiny() -> ScriptedDecoder:
    """A decoder of many rows, for enumeration."""
    return ScriptedDecoder(torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), 8, 8)


def calls(decoder: ScriptedDecoder) -> dict[str, Call]:
    """All, over one decoder."""
    named: Iterable[tuple[str, dict[str, Call]]] = [
        ("Generator", generator_calls(decoder, False)),
        ("SpeculativeGenerator", generator_calls(decoder, True)),
        ("decoder", slots_calls(decoder)),
        ("conversions", conversions()),
        ("readings", readings()),
    ]
    return {f"{kind} {name}": call for kind, several in named for name, call in several.items()}
