"""Asynchronous iterator over the text of a generation in a thread."""

import attrs

from ..decoding.results.events import Event
from .event_text import single_row_text
from .queue_reader import TaskReader
from .queue_streamer import TextQueueStreamer


@attrs.define(eq=False)
class AsyncTextIterator(TaskReader[str], TextQueueStreamer):
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
        timeout: Longest wait for a piece in seconds, after which the reader gets ``TimeoutError``, and a loop
            over it ends the generation; None for no limit.

        capacity: Maximum number of pieces waiting to be read.

        when_full: Behaviour at capacity: ``"wait"`` pauses the generation, ``"merge"`` appends to
            the last waiting piece and continues. No text is lost either way.
    """

    def _item(self, event: Event) -> str:
        return single_row_text(event)
