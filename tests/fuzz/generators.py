"""Generators made from one integer seed, whose parts can be made to raise at a chosen call."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from decodekit.decoding import (
    EndOfSequence,
    Generation,
    Generator,
    Greedy,
    MaxNewTokens,
    Mirostat,
    Sample,
    StopStrings,
    StopTokens,
)
from decodekit.processors import DRY, NoRepeatNgram, RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import (
    AdaptiveLength,
    DraftModel,
    DraftTree,
    Mixture,
    PromptLookup,
    SuffixAutomaton,
    Tree,
)
from decodekit.testing import ScriptedDecoder

from .tripping_parts import (
    NEVER,
    ROWS,
    VOCAB,
    Target,
    Trip,
    TrippingDecoder,
    TrippingDrafter,
    TrippingFunction,
    TrippingModel,
    TrippingSample,
    TrippingStop,
    TrippingTokenizer,
)

Outcome = tuple[list[list[int]], list[str] | None, list[str | None]]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Numbers, each with a point behind it."""
    backend = Tokenizer(models.WordLevel({f"{i}.": i for i in range(VOCAB)}, unk_token="0."))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def table(seed: int) -> Tensor:
    """Logits of the prefixes."""
    return 2 * torch.randn(31, VOCAB, generator=torch.Generator().manual_seed(seed))


def target(seed: int, trip: Trip = NEVER) -> Target:
    """The decoder to generate with of the case *seed*."""
    dice = random.Random(seed)
    if dice.random() < 0.15:
        model = TrippingModel()
        model.trip = trip
        return model
    decoder = TrippingDecoder(
        table(dice.randrange(4)),
        batch_size=ROWS,
        max_length=dice.choice([24, 48]),
        widths=dice.choice([(1, 5, 16), (1, 5)]),
        tree_widths=dice.choice([(), (8, 16)]),
    )
    decoder.trip = trip
    return decoder


def draft_decoder(trip: Trip = NEVER) -> TrippingDecoder:
    """A decoder to draft with, which often agrees with the first kind of target."""
    noise = 0.3 * torch.randn(31, VOCAB, generator=torch.Generator().manual_seed(9))
    decoder = TrippingDecoder(
        table(0) + noise, batch_size=ROWS, max_length=32, widths=(1, 5), tree_widths=(3, 8)
    )
    decoder.trip = trip
    return decoder


def a_drafter(dice: random.Random, decoder: Target, drafting: ScriptedDecoder) -> Any:
    """A drafter for *decoder*, perhaps with the decoder *drafting*."""
    kinds: list[Callable[[], Any]] = [
        PromptLookup,
        SuffixAutomaton,
        lambda: DraftModel(drafting),
        lambda: Mixture((PromptLookup(), DraftModel(drafting))),
    ]
    if decoder.tree_widths:
        kinds.append(lambda: DraftTree(drafting, Tree((-1, -1, 0, 0, 1))))
    return dice.choice(kinds)()


def generator(
    dice: random.Random, decoder: Target, drafting: ScriptedDecoder, trip: Trip | None = None
) -> Generator:
    """A generator over *decoder*; with *trip* all of its parts have it."""
    processors = dice.choice(
        [
            None,
            Temperature(0.8) | TopK(6) | TopP(0.9),
            RepetitionPenalty(1.3) | Temperature(1.2),
            NoRepeatNgram(2) | TopP(0.8),
            DRY(0.7) | Temperature(0.7),
        ]
    )
    drafter = a_drafter(dice, decoder, drafting) if dice.random() < 0.6 else None
    samplers = [Greedy(), Sample(dice.randrange(5)), Sample(7)]
    sampler: Any = dice.choice([*samplers, Mirostat(2.0, seed=3)] if drafter is None else samplers)
    stop: Any = MaxNewTokens(dice.randrange(2, 16))
    stop = dice.choice([stop, stop | StopTokens([3]), stop | EndOfSequence(5)])
    words: Any = dice.choice([None, tokenizer()])
    if words is not None and dice.random() < 0.3:
        stop = stop | StopStrings("7.", words)
    if trip is not None:
        processors = None if processors is None else TrippingFunction(processors, trip)
        chain = not isinstance(drafter, DraftTree)
        kinds = {Greedy: TrippingFunction, Sample: TrippingSample}
        if chain and type(sampler) in kinds:
            sampler = kinds[type(sampler)](sampler, trip)
        stop = TrippingStop(stop, trip)
        drafter = TrippingDrafter(drafter, trip) if chain and drafter is not None else drafter
        words = None if words is None else TrippingTokenizer(words, trip)
    return Generator(
        decoder,
        processors=processors,
        sampler=sampler,
        stop=stop,
        drafter=drafter,
        num_draft_tokens=dice.choice([2, 4, AdaptiveLength(4)]),
        tokenizer=words,
        exact_width=dice.random() < 0.1 and not isinstance(drafter, DraftTree),
    )


def prompts(dice: random.Random, rows: int = ROWS) -> list[list[int]]:
    """Up to *rows* prompts."""
    counts = [dice.randrange(1, 9) for _ in range(dice.randrange(1, rows + 1))]
    return [[dice.randrange(VOCAB) for _ in range(count)] for count in counts]


def made(
    seed: int, number: int, decoder: Target, drafting: ScriptedDecoder, trip: Trip | None = None
) -> tuple[Generator, list[list[int]]]:
    """Generator *number* of the case *seed*, and prompts for it."""
    dice = random.Random(f"{seed} {number}")
    own = generator(dice, decoder, drafting, trip)
    return own, prompts(dice)


def solo(seed: int, number: int, tripping: bool = False) -> Outcome:
    """What generator *number* of the case *seed* gives alone, with decoders of its own."""
    trip = Trip() if tripping else None
    own, given = made(seed, number, target(seed), draft_decoder(), trip)
    return outcome(own(given))


def outcome(generation: Generation) -> Outcome:
    """What must be the same as alone."""
    return generation.ids, generation.text, generation.finish_reasons
