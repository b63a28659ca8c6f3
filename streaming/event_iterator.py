"""Iterator over the events of a generation in another thread."""

import attrs

from ..decoding.results.events import Event
from .queue_reader import ThreadReader
from .queue_streamer import QueueStreamer


@attrs.define(eq=False)
class EventIterator(ThreadReader[Event], QueueStreamer):
    """
    Iterate over the events of a generation, of any number of rows, while another thread decodes.

    ``generator.stream`` decodes on demand; here the decoder runs ahead of the reader. Usage and
    arguments as :class:`~.text_iterator.TextIterator`.
    """

    def _item(self, event: Event) -> Event:
        return event
