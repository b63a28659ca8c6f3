"""Requests to a generator from tasks: many at a time where they can share its decoder."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import attrs

from ..decoding.engine.parts import prompt_rows
from ..decoding.generator import Generator
from ..decoding.results.background import in_thread
from ..decoding.results.events import Event
from ..decoding.results.logprobs import Logprobs
from ..decoding.serving.batcher import Batcher
from ..decoding.serving.sharing import reason_not_to_share

_LOG = logging.getLogger(__name__)


class Events(Protocol):
    """The events of a request, in the order in which they occur."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """The events."""

    async def aclose(self) -> None:
        """End the request within a step, if it has not ended; to be called in any case."""


class GenerationService(Protocol):
    """What takes requests, with *prompts*, *random_streams* and *logprobs* of :meth:`Generator.stream`."""

    async def begin(
        self, prompts: Any, random_streams: Sequence[int] | None = None, logprobs: Logprobs | None = None
    ) -> Events:
        """Validate a request and begin it."""

    def close(self) -> None:
        """Take no more requests, cancel those that run, and wait for nothing."""


def service_of(generator: Generator) -> GenerationService:
    """
    A service with the parts of *generator* for every request.

    Requests that cannot share the decoder (:func:`~..decoding.serving.sharing.reason_not_to_share`) take
    turns, and a warning of the logger says why.
    """
    reason = reason_not_to_share(generator.parts, generator.decoder)
    if reason is None:
        return BatchedService(generator)
    _LOG.warning("one request runs at a time: %s", reason)
    return TakingTurns(generator)


@attrs.frozen(eq=False)
class BatchedService:
    """As many prompts at a time as the decoder has rows; further ones wait."""

    generator: Generator
    _batcher: Batcher = attrs.field(init=False)

    @_batcher.default
    def _begun_batcher(self) -> Batcher:
        return Batcher(self.generator.decoder, exact_width=self.generator.exact_width).__enter__()

    async def begin(
        self, prompts: Any, random_streams: Sequence[int] | None = None, logprobs: Logprobs | None = None
    ) -> Events:
        """See :class:`GenerationService`."""
        parts, shape = self.generator.parts, self.generator.decoder.shape
        # In a thread, since tokenizing a long text takes time. Not so the submission: of a task that is
        # cancelled meanwhile the request would go on.
        rows = await asyncio.to_thread(prompt_rows, parts, prompts, shape)
        return self._batcher.submit_many(parts, rows, random_streams=random_streams, logprobs=logprobs)

    def close(self) -> None:
        """See :class:`GenerationService`."""
        self._batcher.close(finish=False, wait=False)


@attrs.frozen(eq=False)
class TakingTurns:
    """One request at a time, each as a call of the generator."""

    generator: Generator
    _turn: asyncio.Lock = attrs.field(factory=asyncio.Lock, init=False)

    async def begin(
        self, prompts: Any, random_streams: Sequence[int] | None = None, logprobs: Logprobs | None = None
    ) -> Events:
        """See :class:`GenerationService`; the request itself begins in its turn, when its events are read."""
        events = await asyncio.to_thread(self.generator.stream, prompts, random_streams, logprobs)
        return self._in_turn(in_thread(events))

    def close(self) -> None:
        """See :class:`GenerationService`; a request ends when its events are closed."""

    async def _in_turn(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        async with self._turn, aclosing(events):
            async for event in events:
                yield event
