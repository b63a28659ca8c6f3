"""Failures of one part in the middle of a generation, after which the next call must be right."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import attrs
import torch
from torch import Tensor

from decodekit.decoding import Decoder, Event, Finish, Generator, History
from decodekit.decoding.protocols import Drafter
from decodekit.decoding.scores import Scores
from decodekit.streaming import Callback
from decodekit.testing import ScriptedDecoder

from ..speculation.same_text import Failing
from .generation_case import Case


class InjectedError(BaseException):
    """Raised by a part, as a KeyboardInterrupt is: no Exception."""


@attrs.define(eq=False)
class Countdown:
    """Raises at the *left*-th call."""

    left: int

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise InjectedError("injected")


@attrs.define(eq=False)
class FailingProcessor(Countdown):
    """Changes nothing until it raises."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        self.count()
        return logits


@attrs.define(eq=False)
class FailingStop(Countdown):
    """Ends no row until it raises."""

    finishes = (Finish("never"),)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        self.count()
        return torch.zeros_like(history.length)


@attrs.define(eq=False)
class FailingSampler(Countdown):
    """Samples the first token until it raises."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        self.count()
        return torch.zeros_like(history.length)

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        self.count()
        return torch.arange(n).expand(*logits.shape[:2], n)


@attrs.define(eq=False)
class FailingStreamer(Countdown):
    """Takes events until it raises."""

    def __call__(self, event: Event) -> None:
        self.count()


@contextmanager
def failing_forward(at: int, after: bool) -> Iterator[None]:
    """Let the *at*-th forward of any scripted decoder raise, before it writes or *after*."""
    countdown, forward = Countdown(at), ScriptedDecoder.forward

    def failing(self: ScriptedDecoder, ids: Tensor, cache_pos: Tensor) -> Tensor:
        if not after:
            countdown.count()
        logits = forward(self, ids, cache_pos)
        if after:
            countdown.count()
        return logits

    with mock.patch.object(ScriptedDecoder, "forward", failing):
        yield


def fail(case: Case, decoder: Decoder, drafter: Drafter | None, dice: random.Random) -> str:
    """Generate with one part that raises; what it was, and whether it did."""
    at = dice.randint(1, 9)
    what = dice.choice(["processor", "stop", "sampler", "streamer", "forward", "drafter"])
    rows = range(len(case.prompts))
    changes: dict[str, Any] = {}
    if what == "processor":
        chain, failing = case.chain(rows), FailingProcessor(at)
        changes = {"processors": failing if chain is None else chain | failing}  # type: ignore[operator]
    elif what == "stop":
        changes = {"stop": FailingStop(at) | case.stop(rows)}  # type: ignore[operator]
    elif what == "sampler" and type(case.verification).__name__ == "ExactMatch":
        changes = {"sampler": FailingSampler(at)}
    elif what == "drafter" and drafter is not None and not case.trees:
        drafter = Failing(drafter, at)
    generator: Generator = case.generator(decoder, drafter, **changes)
    streamer = Callback(FailingStreamer(at)) if what == "streamer" else None
    forward = failing_forward(at, dice.random() < 0.5) if what == "forward" else nullcontext()
    raised: BaseException | None = None
    try:
        with forward:
            case.run(generator, streamer=streamer)
    except (InjectedError, RuntimeError) as error:
        raised = error
    assert str(raised) in ("injected", "broken", "None"), f"{what} raised, and that became {raised!r}"
    return f"{what} did not raise" if raised is None else f"{what} raised"
