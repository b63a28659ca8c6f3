"""Callback functions as a streamer."""

from collections.abc import Callable
from typing import Any

import attrs

from ..decoding.results.events import Event


def _a_function(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if not callable(value):
        raise TypeError(f"'{attribute.name}' must be a function: got {value!r}")


def _a_function_or_none(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is not None:
        _a_function(instance, attribute, value)


@attrs.frozen(eq=False)
class Callback:
    """
    Call functions on events, at the end and on errors.

    An exception raised by a function stops the generation;
    :class:`~decodekit.decoding.results.streamers.ClosedError` stops it without an error. Functions are
    called in the generation's thread, which waits for them.

    Args:
        on_event: Called with each event. Its result is ignored.

        on_end: Called without arguments after the last event.

        on_error: Called with the generation's exception instead of *on_end*. Without it, *on_end*
            is called.

    >>> streamer = Callback(lambda event: print(event.row, event.ids))
    >>> streamer.put_event(Event(row=0, ids=(5, 6)))
    0 (5, 6)
    """

    on_event: Callable[[Event], Any] = attrs.field(validator=_a_function)
    on_end: Callable[[], Any] | None = attrs.field(default=None, validator=_a_function_or_none)
    on_error: Callable[[BaseException], Any] | None = attrs.field(default=None, validator=_a_function_or_none)

    def put_event(self, event: Event) -> None:
        """Call *on_event*."""
        self.on_event(event)

    def end(self) -> None:
        """Call *on_end*."""
        if self.on_end is not None:
            self.on_end()

    def fail(self, error: BaseException) -> None:
        """Call *on_error*, or *on_end* if there is none."""
        if self.on_error is None:
            self.end()
        else:
            self.on_error(error)
