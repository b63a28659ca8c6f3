"""Iterator over the events of a generation in another thread."""

from collections.abc import Iterator
from types import TracebackType

import attrs

from ..decoding.results.events import Event
from .queue_streamer import QueueStreamer


@attrs.define(eq=False)
class EventIterator(QueueStreamer):
    """
    Iterate over the events of a generation, of any number of rows, while another thread decodes.

    ``generator.stream`` decodes on demand; here the decoder runs ahead of the reader. Usage and
    arguments as :class:`~.text_iterator.TextIterator`.
    """

    def __iter__(self) -> Iterator[Event]:
        """Iterate to the end; leaving the loop early closes this iterator."""
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
        """Stop reading; the generation's next event raises :class:`ClosedError` there."""
        self._queue.close()

    def __enter__(self) -> "EventIterator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
