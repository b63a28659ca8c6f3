from collections.abc import Iterator
from types import TracebackType

import attrs
from attrs import validators

from ..decoding.events import Event
from .event_queue import EventQueue, WhenFull


@attrs.define(eq=False)
class EventIterator:
    """
    Read the events of a generation, any number of rows, in one thread while another decodes.

    ``generator.stream`` decodes when it is asked for an event; here the decoder runs ahead of
    the reader. Used like :class:`~.text_iterator.TextIterator`, whose arguments it has.
    """

    timeout: float | None = attrs.field(default=None, validator=validators.optional(validators.gt(0)))
    capacity: int = 64
    when_full: WhenFull = "wait"
    _queue: EventQueue = attrs.field(init=False, repr=False)

    @_queue.default
    def _a_queue(self) -> EventQueue:
        return EventQueue(self.capacity, self.when_full)

    # The generation's side.

    def begin(self, prompts: list[list[int]]) -> None:
        """Refuse a second generation, and one that nobody reads."""
        self._queue.begin()

    def put_event(self, event: Event) -> None:
        """
        Pass on the event.

        Raises:
            ClosedError: The reader is gone.
        """
        self._queue.put(event)

    def end(self) -> None:
        """Let the reader stop behind the last event."""
        self._queue.end()

    def fail(self, error: BaseException) -> None:
        """Let the reader raise *error* behind the last event."""
        self._queue.fail(error)

    # The reader's side.

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
