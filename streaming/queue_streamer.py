"""Streamers that queue events for a reader."""

import threading
from typing import ClassVar

import attrs
from attrs import validators

from ..decoding.results.events import Event
from ..decoding.validation import as_real, one_real
from .event_queue import EventQueue, WhenFull
from .event_text import require_single_row, single_row_text

_A_WAIT = one_real(
    f"in (0, {threading.TIMEOUT_MAX:.0f}] or None", lambda seconds: 0 < seconds <= threading.TIMEOUT_MAX
)


@attrs.define(eq=False)
class QueueStreamer:
    """
    Base class of the iterators: the generation's side of the queue.

    Args:
        timeout: Longest wait for an event in seconds, after which the reader gets ``TimeoutError``, and a
            loop over it ends the generation; None for no limit.

        capacity: Maximum number of events waiting to be read.

        when_full: Behaviour at capacity: see :class:`~.event_queue.EventQueue`.
    """

    timeout: float | None = attrs.field(
        default=None, converter=as_real, validator=validators.optional(_A_WAIT)
    )
    capacity: int = 64
    when_full: WhenFull = "wait"
    _queue: EventQueue = attrs.field(init=False, repr=False)

    for_tasks: ClassVar[bool] = False
    """Whether the readers are tasks of an event loop."""

    @_queue.default
    def _a_queue(self) -> EventQueue:
        return EventQueue(self.capacity, self.when_full, self.for_tasks)

    def begin(self, prompts: list[list[int]]) -> None:
        """Start; raises for a second generation or without a reader."""
        self._queue.begin()

    def put_event(self, event: Event) -> None:
        """
        Enqueue the event.

        Raises:
            ClosedError: The reader is gone.
        """
        self._queue.put(event)

    def end(self) -> None:
        """End the reader's iteration after the last event."""
        self._queue.end()

    def fail(self, error: BaseException) -> None:
        """Raise *error* in the reader after the last event."""
        self._queue.fail(error)


@attrs.define(eq=False)
class TextQueueStreamer(QueueStreamer):
    """Queue for the text of one row: events without text are skipped."""

    def begin(self, prompts: list[list[int]]) -> None:
        """Start; raises for several prompts, for a second generation, or without a reader."""
        require_single_row(prompts)
        super().begin(prompts)

    def put_event(self, event: Event) -> None:
        """
        Enqueue the event if it has text.

        Raises:
            ClosedError: The reader is gone.
        """
        if single_row_text(event):
            self._queue.put(event)
        else:
            self._queue.require_reader()
