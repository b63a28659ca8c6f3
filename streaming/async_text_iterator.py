from collections.abc import AsyncGenerator
from types import TracebackType
from typing import ClassVar

import attrs

from .event_text import single_row_text
from .queue_streamer import TextQueueStreamer


@attrs.define(eq=False)
class AsyncTextIterator(TextQueueStreamer):
    """
    Read the text of one row in an event loop while a thread generates it.

    :class:`~.text_iterator.TextIterator` for tasks::

        async with AsyncTextIterator() as pieces:
            generation = asyncio.create_task(asyncio.to_thread(generator, prompt, streamer=pieces))
            async for piece in pieces:
                ...

    Leaving the loop or the block stops the generation within a step, and so does a cancel that
    ends either. It may be made anywhere: it belongs to the event loop in which it is first read,
    and the generation stops when that is closed.

    Args:
        timeout: Longest time in seconds to wait for a piece; None waits for as long as it takes.

        capacity: Pieces that may wait to be read.

        when_full: What the generation does while as many wait: ``"wait"`` for the reader, or
            ``"merge"`` what comes into the last of them and go on. Nothing is lost either way.
    """

    for_tasks: ClassVar[bool] = True

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        """Read to the end; a loop that is left before closes this."""
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
        """Read no further: the generation's next event raises :class:`ClosedError` there."""
        self._queue.close()

    async def __aenter__(self) -> "AsyncTextIterator":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.close()
