"""Asynchronous iterator over the events of a generation in a thread."""

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import ClassVar

import attrs

from ..decoding.results.events import Event
from .queue_streamer import QueueStreamer


@attrs.define(eq=False)
class AsyncEventIterator(QueueStreamer):
    """
    Iterate over the events of a generation, of any number of rows, in an event loop.

    The generation runs in a thread. ``generator.astream`` decodes on demand; here the decoder runs
    ahead of the reader. Usage and arguments as :class:`~.async_text_iterator.AsyncTextIterator`.
    """

    for_tasks: ClassVar[bool] = True

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        """Iterate to the end; leaving the loop early closes this iterator."""
        try:
            while (event := await self._queue.take_in_task(self.timeout)) is not None:
                yield event
        finally:
            self._queue.close()

    async def __anext__(self) -> Event:
        event = await self._queue.take_in_task(self.timeout)
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """Stop reading; the generation's next event raises :class:`ClosedError` there."""
        self._queue.close()

    async def __aenter__(self) -> "AsyncEventIterator":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.close()
