"""
Generators made from one integer seed, whose parts can be made to raise at a chosen call.

No relative imports: programs that tests start import it too.
"""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import attrs
import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from decodekit.decoding import (
    EndOfSequence,
    Generation,
    Generator,
    Greedy,
    History,
    MaxNewTokens,
    Mirostat,
    Sample,
    StopStrings,
    StopTokens,
)
from decodekit.neuron_backend import CompiledDecoder
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

VOCAB = 11
ROWS = 3

Outcome = tuple[list[list[int]], list[str] | None, list[str | None]]


@attrs.define(eq=False)
class Trip:
    """Raises an error at one of its calls, counted over all parts that have it."""

    at: int = 0
    """Number of that call, from 1; 0: never."""

    error: Callable[[], BaseException] = KeyboardInterrupt
    calls: int = 0
    raised: BaseException | None = None

    def arm(self, at: int, error: Callable[[], BaseException]) -> None:
        """Begin to count: when generators are made, their parts are called too."""
        self.at, self.error, self.calls = at, error, 0

    def hit(self) -> None:
        """Count a call."""
        self.calls += 1
        if self.calls == self.at:
            self.raised = self.error()
            raise self.raised


NEVER = Trip()


class TrippingDecoder(ScriptedDecoder):
    """Raises before a forward, between two tokens that it writes, or after it."""

    trip = NEVER

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        self.trip.hit()
        logits = super().forward(ids, cache_pos)
        self.trip.hit()
        return logits

    def _write(self, row: int, position: int, token: int) -> None:
        self.trip.hit()
        super()._write(row, position, token)


@attrs.frozen
class TrippingFunction:
    """A processor, or a sampler without a seed, before which *trip* counts."""

    inner: Any
    trip: Trip

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        self.trip.hit()
        result: Tensor = self.inner(logits, history)
        return result


@attrs.frozen
class TrippingSample(TrippingFunction):
    """A sampler with a seed before which *trip* counts."""

    @property
    def seed(self) -> int:
        seed: int = self.inner.seed
        return seed


@attrs.frozen
class TrippingStop:
    """A stop condition before which *trip* counts."""

    inner: Any
    trip: Trip

    @property
    def finishes(self) -> Any:
        return self.inner.finishes

    def __call__(self, scores: Any, history: History) -> Tensor:
        self.trip.hit()
        codes: Tensor = self.inner(scores, history)
        return codes


@attrs.frozen
class TrippingDrafter:
    """A drafter before and after which *trip* counts."""

    inner: Any
    trip: Trip

    def propose(self, history: History, budget: Tensor, sample: Any) -> Any:
        self.trip.hit()
        draft = self.inner.propose(history, budget, sample)
        self.trip.hit()
        return draft


@attrs.frozen
class TrippingTokenizer:
    """A tokenizer before whose ``decode`` *trip* counts."""

    inner: Any
    trip: Trip

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def decode(self, ids: Any, **options: Any) -> str:
        self.trip.hit()
        text: str = self.inner.decode(ids, **options)
        return text


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Numbers, each with a point behind it."""
    backend = Tokenizer(models.WordLevel({f"{i}.": i for i in range(VOCAB)}, unk_token="0."))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


class TrippingModel:
    """A model in float64, before and after whose forwards *trip* counts."""

    trip = NEVER
    tree_widths = ()

    def __init__(self) -> None:
        self._decoder = CompiledDecoder(llama(), batch_size=ROWS, max_length=32, widths=(1, 5, 16))
        self.shape = self._decoder.shape

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        self.trip.hit()
        logits = self._decoder.forward(ids, cache_pos)
        self.trip.hit()
        return logits


Target = TrippingDecoder | TrippingModel


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


@cache
def llama() -> Any:
    """A tiny model, the same at every call."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).double().eval()


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
