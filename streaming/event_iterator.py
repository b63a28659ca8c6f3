from collections.abc import Iterator
from types import TracebackType

import attrs

from ..decoding.results.events import Event
from .queue_streamer import QueueStreamer


@attrs.define(eq=False)
class EventIterator(QueueStreamer):
    """
    Read the events of a generation, any number of rows, in one thread while another decodes.

    ``generator.stream`` decodes when it is asked for an event; here the decoder runs ahead of
    the reader. Used like :class:`~.text_iterator.TextIterator`, whose arguments it has.
    """

    def __iter__(self) -> Iterator[Event]:
        """Read to the end; a loop that is left before closes this."""
        try:
            yield from iter(lambda: self._queue.take(self.timeout), None)
        finally:
            self.close()

    def __next__(self) -> Event:
        event = self._queue.take(self.timeout)
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """Read no further: the generation's next event raises :class:`ClosedError` there."""
        self._queue.close()

    def __enter__(self) -> "EventIterator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
