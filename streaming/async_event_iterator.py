from collections.abc import AsyncGenerator
from types import TracebackType
from typing import ClassVar

import attrs

from ..decoding.results.events import Event
from .queue_streamer import QueueStreamer


@attrs.define(eq=False)
class AsyncEventIterator(QueueStreamer):
    """
    Read the events of a generation, any number of rows, in an event loop while a thread decodes.

    ``generator.astream`` decodes when it is asked for an event; here the decoder runs ahead of the
    reader. Used like :class:`~.async_text_iterator.AsyncTextIterator`, whose arguments it has.
    """

    for_tasks: ClassVar[bool] = True

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        """Read to the end; a loop that is left before closes this."""
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
        """Read no further: the generation's next event raises :class:`ClosedError` there."""
        self._queue.close()

    async def __aenter__(self) -> "AsyncEventIterator":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.close()
