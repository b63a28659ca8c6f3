"""Values off in type, range and size are refused by name, before they reach a tensor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.decoding import (
    AdaptiveP,
    AdaptivePRun,
    Consecutive,
    DecoderShape,
    Detokenizer,
    Finish,
    Generator,
    History,
    MaxLength,
    MaxNewTokens,
    Mirostat,
    MirostatRun,
    NotBefore,
    RepetitionLoop,
    Slots,
    StopCondition,
)
from decodekit.decoding.scores import Scores
from decodekit.processors import Chain, ForcedFirstToken, SuppressTokens, SynthIDWatermark
from decodekit.speculation import check_exactness
from decodekit.testing import ScriptedDecoder

HUGE = 10**30
ANYTHING: Any = object()


class Bool:
    """A stop condition that returns a bool."""

    finishes = (Finish("stop"),)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        answer: Any = True
        return answer


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MaxNewTokens(HUGE), ValueError, "'n' must be at least 1, and fit into 64 bits"),
        (lambda: MaxLength(HUGE), ValueError, "'n' must be at least 1, and fit into 64 bits"),
        (lambda: NotBefore(HUGE, MaxNewTokens(3)), ValueError, "'n' must be .* fit into 64 bits"),
        (lambda: ForcedFirstToken(HUGE), ValueError, "token ids must fit into 64 bits"),
        (lambda: SuppressTokens([1, HUGE]), ValueError, "token ids must fit into 64 bits"),
        (lambda: SynthIDWatermark([HUGE]), ValueError, "'keys' must fit in 64 bits"),
        (lambda: SynthIDWatermark(ANYTHING), TypeError, "'keys' must be integers"),
        (lambda: RepetitionLoop(ANYTHING), TypeError, "'max_period' must be a whole number"),
        (lambda: RepetitionLoop(HUGE), ValueError, "'max_period' must be <= 1048576"),
        (lambda: RepetitionLoop(4, repeats=ANYTHING), TypeError, "'repeats' must be a whole number"),
        (lambda: Slots(ANYTHING), TypeError, "'decoder' must have a shape and forward"),
        (lambda: Slots.of(ANYTHING), TypeError, "'decoder' must have a shape and forward"),
        (lambda: Detokenizer(ANYTHING), TypeError, "'tokenizer' must have a method decode"),
        (lambda: check_exactness(ANYTHING, [1]), TypeError, "'make' must be a function"),
        (lambda: check_exactness(lambda: ANYTHING, [1]), TypeError, "'make' must return a Generator"),
        (lambda: DecoderShape(1, 8, 3, ANYTHING, 1), TypeError, "'widths' must be a sequence"),
        (lambda: DecoderShape(1, 8, 3, ("a",), 1), TypeError, "'widths' must be whole numbers"),  # type: ignore[arg-type]
        (lambda: DecoderShape(ANYTHING, 8, 3, (1,), 1), ValueError, "'batch_size' must be a whole number"),
        (lambda: DecoderShape(1, 0, 3, (1,), 1), ValueError, "'max_length' must be a whole number >= 1"),
        (lambda: Chain(ANYTHING), TypeError, "'processors' must be a sequence"),
        (lambda: AdaptivePRun(2**31, AdaptiveP(0.5)), ValueError, "'batch' must be <= 1048576"),
        (lambda: AdaptivePRun(ANYTHING, AdaptiveP(0.5)), TypeError, "'batch' must be a whole number"),
        (lambda: MirostatRun(0, Mirostat()), ValueError, "'batch' must be >= 1"),
    ],
)
def test_is_refused(make: Callable[[], object], error: type[Exception], message: str) -> None:
    """With the parameter, the rule and the value."""
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "stop",
    [
        MaxNewTokens(3) | Bool(),
        MaxNewTokens(3) & Bool(),
        NotBefore(2, Bool()) | MaxNewTokens(3),
        Consecutive(2, Bool()) | MaxNewTokens(3),
    ],
    ids=["or", "and", "not before", "consecutive"],
)
def test_a_stop_that_gives_no_codes_is_named(stop: StopCondition) -> None:
    """Also where it is a part of another."""
    with pytest.raises(TypeError, match=r"must give a tensor of codes, .* got True from <.*Bool"):
        Generator(ScriptedDecoder(torch.zeros(1, 3)), stop=stop)([1])
