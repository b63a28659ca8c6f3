"""Asynchronous iterator over the events of a generation in a thread."""

import attrs

from ..decoding.results.events import Event
from .queue_reader import TaskReader
from .queue_streamer import QueueStreamer


@attrs.define(eq=False)
class AsyncEventIterator(TaskReader[Event], QueueStreamer):
    """
    Iterate over the events of a generation, of any number of rows, in an event loop.

    The generation runs in a thread. ``generator.astream`` decodes on demand; here the decoder runs
    ahead of the reader. Usage and arguments as :class:`~.async_text_iterator.AsyncTextIterator`.
    """

    def _item(self, event: Event) -> Event:
        return event
