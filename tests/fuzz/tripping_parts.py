"""Parts of a generator that can be made to raise at a chosen call."""

from collections.abc import Callable
from functools import cache
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from decodekit.decoding import History
from decodekit.neuron_backend import CompiledDecoder
from decodekit.testing import ScriptedDecoder

VOCAB = 11
ROWS = 3


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
