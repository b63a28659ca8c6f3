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
    Greedy,
    History,
    MaxLength,
    MaxNewTokens,
    Mirostat,
    MirostatRun,
    NotBefore,
    RepetitionLoop,
    SamplingPipeline,
    Slots,
    StopCondition,
    StopStrings,
)
from decodekit.decoding.scores import Scores
from decodekit.processors import (
    DRY,
    Chain,
    ForcedFirstToken,
    Grammar,
    SuppressTokens,
    SynthIDWatermark,
    Temperature,
    TopK,
)
from decodekit.speculation import AdaptiveLength, Mixture, SuffixAutomaton, Tree, check_exactness
from decodekit.testing import ScriptedDecoder

HUGE = 10**30
ANYTHING: Any = object()
SEVERAL: Any = torch.tensor([1, 2])
POINT: Any = torch.tensor(1)
"""An array of no dimensions, which Python takes for an iterable."""


class Joins:
    """A tokenizer."""

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return " ".join(map(str, token_ids))

    def convert_ids_to_tokens(self, ids: int) -> str:
        return str(ids)


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
        (lambda: Detokenizer(ANYTHING), TypeError, "'tokenizer' must have the methods decode"),
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
        (lambda: MirostatRun(2, ANYTHING), TypeError, "'settings' must be .*Mirostat"),
        (lambda: AdaptivePRun(2, ANYTHING), TypeError, "'settings' must be .*AdaptiveP"),
        (lambda: Mirostat(version=ANYTHING), ValueError, "'version' must be 1 or 2"),
        (lambda: Mirostat(version=SEVERAL), ValueError, "'version' must be 1 or 2"),
        (lambda: TopK(HUGE), ValueError, "'k' must fit into 64 bits"),
        (lambda: TopK([1, HUGE]), ValueError, "'k' must fit into 64 bits in every row"),
        (lambda: SynthIDWatermark([1], ngram_len=HUGE), ValueError, "'ngram_len' must fit into 64 bits"),
        (lambda: Temperature(10**400), ValueError, "'temperature' must be finite in float32"),
        (lambda: Temperature([0.5, 10**400]), ValueError, "'temperature' must be finite in float32 in every"),
        (lambda: Mirostat(tau=10**400), ValueError, "'tau' must be > 0 and finite"),
        (
            lambda: SynthIDWatermark([1], sampling_table_seed=ANYTHING),
            TypeError,
            "'sampling_table_seed' must be an integer",
        ),
        (lambda: AdaptiveLength(2**31), ValueError, "'most' must be <= 1048576"),
        (
            lambda: Detokenizer(ANYTHING, pieces=ANYTHING),
            TypeError,
            "'tokenizer' must have the methods decode",
        ),
        (lambda: Detokenizer(Joins(), pieces=ANYTHING), TypeError, "'pieces' must be TokenPieces"),
        (lambda: Detokenizer(Joins(), ANYTHING), TypeError, "'skip_special_tokens' must be <class 'bool'>"),
        (
            lambda: SamplingPipeline(None, Greedy(), plan=ANYTHING),
            TypeError,
            "'plan' must be that of another",
        ),
        (lambda: Chain(POINT), TypeError, "'processors' must be a sequence of processors"),
        (lambda: DRY(0.8, breakers=POINT), TypeError, "token sequences must come in a list"),
        (lambda: Grammar(POINT), TypeError, "'language' must be a language"),
        (lambda: DecoderShape(1, 8, 3, POINT, 1), TypeError, "'widths' must be a sequence of whole numbers"),
        (lambda: StopStrings(POINT, Joins()), TypeError, "'strings' must be a string or several"),
        (lambda: SuffixAutomaton(POINT), TypeError, "'corpus' must be token ids"),
        (lambda: Tree(POINT), TypeError, "'parents' must be whole numbers"),
        (lambda: Mixture(POINT), TypeError, "'drafters' must be drafters"),
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
