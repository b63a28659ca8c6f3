"""Calls with values off in type, range and size are refused by name; a right call afterwards is right."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from decodekit.decoding import Event, Generator, Greedy, History, MaxNewTokens, Sample, Slots, Statistics
from decodekit.processors import (
    KirchenbauerDetector,
    KirchenbauerWatermark,
    SynthIDDetector,
    SynthIDWatermark,
    TopK,
    explain,
    from_generation_config,
    to_vllm,
)
from decodekit.speculation import Tree, check_exactness
from decodekit.streaming import async_server_sent_events, server_sent_events
from decodekit.testing import ScriptedDecoder, check_decoder

from .histories import history_of_rows

HUGE = 10**30
ANYTHING: Any = object()
POINT: Any = np.array(3)
TABLE = torch.randn(11, 8, generator=torch.Generator().manual_seed(1))


class DecodesAlone:
    """A tokenizer that cannot be called."""

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return " ".join(map(str, token_ids))

    def convert_ids_to_tokens(self, ids: int) -> str:
        return str(ids)


def explained(**given: Any) -> object:
    """An explanation of one column."""
    one = torch.ones(1, 1).long()
    history = History(torch.zeros(1, 1, 4).long(), one, one[0], one[0])
    return explain(**{"chain": TopK(2), "logits": torch.rand(1, 1, 3), "history": history, **given})


def exactness(**given: Any) -> object:
    """A check of one token."""
    decoder = ScriptedDecoder(TABLE[:, :3], 8, 8)
    return check_exactness(
        lambda: Generator(decoder, sampler=Sample(seed=0), stop=MaxNewTokens(1)), [[1]], **given
    )


KIRCHENBAUER = KirchenbauerDetector(KirchenbauerWatermark(vocab_size=8))
SYNTHID = SynthIDDetector(SynthIDWatermark([1, 2], ngram_len=2, sampling_table_size=64))
CONFIG = GenerationConfig()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: KIRCHENBAUER(ANYTHING), TypeError, "'texts' must be lists of token ids"),
        (lambda: SYNTHID(POINT), TypeError, "'texts' must be lists of token ids"),
        (lambda: SYNTHID.evidence([[1, 2]], ANYTHING), TypeError, "'lengths' must be whole numbers"),
        (lambda: SYNTHID([[1, 2], 3]), TypeError, "text 1 must be a list of token ids: got 3"),
        (lambda: SYNTHID([[1, HUGE]]), ValueError, "the ids of text 0 must fit into 64 bits"),
        (lambda: explained(chain=3), TypeError, "a chain takes processors"),
        (lambda: explained(examples=[1]), ValueError, "'examples' must be a whole number >= 0"),
        (lambda: explained(tokenizer=3), TypeError, "'tokenizer' must have a method decode"),
        (lambda: explained(tokenizer=b"x"), TypeError, "'tokenizer' must have a method decode: got b'x'"),
        (
            lambda: explained(chain=Greedy()),
            ValueError,
            r"'chain' must give a tensor of the shape \[1, 1, 3\]",
        ),
        (lambda: explained(logits=torch.ones(1, 1, 3).int()), TypeError, "'logits' must be real numbers"),
        (
            lambda: explained(logits=torch.ones(1, 2, 3)),
            ValueError,
            r"'history' must have .* \[1, 2\]: got \[1, 1\]",
        ),
        (lambda: from_generation_config(ANYTHING), TypeError, "'config' must be a .*GenerationConfig"),
        (lambda: from_generation_config(CONFIG, ignore="x"), TypeError, "'ignore' must be names of fields"),
        (lambda: from_generation_config(CONFIG, ignore=[3]), TypeError, "'ignore' must be names of fields"),
        (lambda: to_vllm(TopK(3), name=ANYTHING, base=object), TypeError, "'name' must be a string"),
        (lambda: to_vllm(TopK(3), base=ANYTHING), TypeError, "'base' must be a class"),
        (
            lambda: Statistics().mean_accepted_length_interval([0.5]),
            ValueError,
            "'confidence' must be above 0",
        ),  # type: ignore[arg-type]
        (lambda: Tree.comb(HUGE), ValueError, "'children' must make at most 65536 nodes"),
        (lambda: Tree.of_children(*[4] * 40), ValueError, "'children' must make at most 65536 nodes"),
        (lambda: list(server_sent_events(POINT)), TypeError, "'events' must be events"),
        (
            lambda: list(server_sent_events([Event(0, (1,)), 3])),
            TypeError,
            "'events' must be of the class Event",
        ),  # type: ignore[list-item]
        (lambda: async_server_sent_events(ANYTHING), TypeError, "'events' must be events"),
        (lambda: check_decoder(ANYTHING), TypeError, "'decoder' must have a shape and forward"),
        (lambda: check_decoder(ScriptedDecoder(TABLE), tolerance=10**400), ValueError, "'tolerance' must be"),
        (lambda: check_decoder(ScriptedDecoder(TABLE), seed=-1), ValueError, "'seed' must be"),
        (
            lambda: check_decoder(ScriptedDecoder(TABLE), overflowing=ANYTHING),
            TypeError,
            "'overflowing' must",
        ),
        (lambda: check_decoder(ScriptedDecoder(TABLE), overflowing=[8]), ValueError, "'overflowing' must"),
        (lambda: exactness(tolerance=ANYTHING), ValueError, "'tolerance' must be a number >= 0"),
        (lambda: exactness(tolerance=float("nan")), ValueError, "'tolerance' must be a number >= 0"),
        (lambda: exactness(copies=[1]), TypeError, "'copies' must be a whole number"),
    ],
)
def test_is_refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    """With the argument, the rule and the value."""
    with pytest.raises(error, match=message):
        call()


def test_a_string_is_refused_where_the_tokenizer_only_decodes() -> None:
    """Such a tokenizer is enough for ids."""
    generator = Generator(ScriptedDecoder(TABLE), stop=MaxNewTokens(2), tokenizer=DecodesAlone())

    with pytest.raises(
        TypeError, match="a prompt must be ids where the generator's tokenizer cannot be called"
    ):
        generator("text")
    assert len(generator([1]).ids[0]) == 2


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"history": ANYTHING}, TypeError, "'history' must be a History: got a object"),
        ({"length": torch.tensor([3.0, 1.0])}, TypeError, "'length' must be an int64 tensor"),
        ({"length": torch.tensor(3)}, ValueError, "'length' must have 1 dimension"),
        ({"most": 0}, ValueError, "'most' must be a whole number >= 1, or None: got 0"),
        ({"need": torch.tensor([1])}, ValueError, "must have the same rows, 1 to 2: got 2, 2 and 1"),
        ({"history": history_of_rows([[1]])}, ValueError, "must have the same rows, 1 to 2: got 1, 2 and 2"),
        ({"length": torch.tensor([5, 1])}, ValueError, "'length' must be 0 to 4, the room of the history"),
        ({"length": torch.tensor([-1, 1])}, ValueError, "'length' must be 0 to 4, the room of the history"),
        ({"need": torch.tensor([1, 2])}, ValueError, "'need' must be 0 to the row's length"),
        ({"need": torch.tensor([-1, 1])}, ValueError, "'need' must be 0 to the row's length"),
        ({"exact_width": ANYTHING}, TypeError, "'exact_width' must be True or False"),
    ],
)
def test_a_wrong_feed_feeds_nothing(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    """The decoder's cache is as before, and so is what a right feed gives."""
    decoder = ScriptedDecoder(TABLE, 2, 16)
    slots = Slots.of(decoder)
    right: dict[str, Any] = {
        "history": history_of_rows([[1, 2, 3], [4]], capacity=4),
        "length": torch.tensor([3, 1]),
        "need": torch.tensor([1, 1]),
    }
    expected, forwards = slots.feed(**right).logits.clone(), len(decoder.forwards)

    with pytest.raises(error, match=message):
        slots.feed(**{**right, **changes})
    assert forwards == len(decoder.forwards)
    assert torch.equal(expected, slots.feed(**right).logits)
