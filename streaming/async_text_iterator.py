"""Asynchronous iterator over the text of a generation in a thread."""

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import ClassVar

import attrs

from .event_text import single_row_text
from .queue_streamer import TextQueueStreamer


@attrs.define(eq=False)
class AsyncTextIterator(TextQueueStreamer):
    """
    Iterate over the text of one row in an event loop while a thread generates it.

    The asynchronous form of :class:`~.text_iterator.TextIterator`::

        async with AsyncTextIterator() as pieces:
            generation = asyncio.create_task(asyncio.to_thread(generator, prompt, streamer=pieces))
            async for piece in pieces:
                ...

    Leaving the loop or the block, also by cancellation, stops the generation within one step. The
    iterator binds to the event loop in which it is first read; closing that loop stops the
    generation too.

    Args:
        timeout: Longest wait for a piece in seconds; None for no limit.

        capacity: Maximum number of pieces waiting to be read.

        when_full: Behaviour at capacity: ``"wait"`` pauses the generation, ``"merge"`` appends to
            the last waiting piece and continues. No text is lost either way.
    """

    for_tasks: ClassVar[bool] = True

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        """Iterate to the end; leaving the loop early closes this iterator."""
        try:
            while (event := await self._queue.take_in_task(self.timeout)) is not None:
                yield single_row_text(event)
        finally:
            self._queue.close()

    async def __anext__(self) -> str:
        event = await self._queue.take_in_task(self.timeout)
        if event is None:
            raise StopAsyncIteration
        return single_row_text(event)

    async def aclose(self) -> None:
        """Stop reading; the generation's next event raises :class:`ClosedError` there."""
        self._queue.close()

    async def __aenter__(self) -> "AsyncTextIterator":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.close()
