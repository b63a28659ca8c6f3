"""A streamer whose events wait for a reader."""

import threading
from typing import ClassVar

import attrs
from attrs import validators

from ..decoding.results.events import Event
from ..decoding.validation import as_real, one_real
from .event_queue import EventQueue, WhenFull
from .event_text import single_row_text

_A_WAIT = one_real(
    f"in (0, {threading.TIMEOUT_MAX:.0f}] or None", lambda seconds: 0 < seconds <= threading.TIMEOUT_MAX
)


@attrs.define(eq=False)
class QueueStreamer:
    """
    The generation's side of the iterators of this room, which add the reader's.

    Args:
        timeout: Longest time in seconds to wait for an event; None waits for as long as it takes.

        capacity: Events that may wait to be read.

        when_full: What the generation does while as many wait: see :class:`~.event_queue.EventQueue`.
    """

    timeout: float | None = attrs.field(
        default=None, converter=as_real, validator=validators.optional(_A_WAIT)
    )
    capacity: int = 64
    when_full: WhenFull = "wait"
    _queue: EventQueue = attrs.field(init=False, repr=False)

    for_tasks: ClassVar[bool] = False
    """Whether tasks of an event loop read."""

    @_queue.default
    def _a_queue(self) -> EventQueue:
        return EventQueue(self.capacity, self.when_full, self.for_tasks)

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


@attrs.define(eq=False)
class TextQueueStreamer(QueueStreamer):
    """The same for the text of one row: events without any are not passed on."""

    def put_event(self, event: Event) -> None:
        """
        Pass on what the event adds.

        Raises:
            ClosedError: The reader is gone.
        """
        if single_row_text(event):
            self._queue.put(event)
        else:
            self._queue.require_reader()
