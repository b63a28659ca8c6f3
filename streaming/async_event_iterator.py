from collections.abc import AsyncGenerator
from types import TracebackType

import attrs
from attrs import validators

from ..decoding.events import Event
from .event_queue import EventQueue, WhenFull


@attrs.define(eq=False)
class AsyncEventIterator:
    """
    Read the events of a generation, any number of rows, in an event loop while a thread decodes.

    ``generator.astream`` decodes when it is asked for an event; here the decoder runs ahead of the
    reader. Used like :class:`~.async_text_iterator.AsyncTextIterator`, whose arguments it has.
    """

    timeout: float | None = attrs.field(default=None, validator=validators.optional(validators.gt(0)))
    capacity: int = 64
    when_full: WhenFull = "wait"
    _queue: EventQueue = attrs.field(init=False, repr=False)

    @_queue.default
    def _a_queue(self) -> EventQueue:
        return EventQueue(self.capacity, self.when_full, for_tasks=True)

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
