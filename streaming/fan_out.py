"""Several streamers as one."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs

from ..decoding.results.events import Event
from ..decoding.results.streamers import ClosedError, Listener, listener, takes_events, takes_ids


def _streamers(instance: Any, attribute: "attrs.Attribute[Any]", value: tuple[Any, ...]) -> None:
    if not value:
        raise ValueError("'streamers' must be at least one: got none")
    for streamer in value:
        if not (takes_events(streamer) or takes_ids(streamer)):
            raise TypeError(
                "'streamers' must each have put_event(event) and end(), or put(ids) and end() as Hugging "
                f"Face's have: got {streamer!r}, a {type(streamer).__name__}"
            )


@attrs.define(eq=False, init=False)
class FanOut:
    """
    Pass the events of one generation to several streamers.

    Each streamer gets every event, in the order of the arguments, and the end exactly once.

    - One that raises :class:`~decodekit.decoding.results.streamers.ClosedError` is ended and gets no
      more events; the others continue. When all have closed, the generation ends.
    - If one raises anything else, all of them get the failure, and the error propagates.

    The generation waits for each: a slow reader delays the others. Hugging Face's streamers are
    accepted too, for a single prompt.

    >>> from decodekit.streaming import Callback
    >>> both = FanOut(Callback(lambda event: print(event.ids)), Callback(lambda event: print(event.text)))
    >>> both.put_event(Event(row=0, ids=(5, 6), text="Hello"))
    (5, 6)
    Hello
    """

    streamers: tuple[Any, ...] = attrs.field(validator=_streamers)
    # Streamers that have not closed; None while there is no generation.
    _listeners: list[Listener] | None = attrs.field(init=False, repr=False, default=None)

    def __init__(self, *streamers: Any) -> None:
        self.__attrs_init__(streamers)

    def begin(self, prompts: list[list[int]]) -> None:
        """Pass the prompts to the streamers that take them."""
        self._listeners = [listener(streamer, prompts) for streamer in self.streamers]
        self._notify(lambda each: each.begin())

    def put_event(self, event: Event) -> None:
        """
        Pass an event to the streamers that have not closed.

        Raises:
            ClosedError: All streamers have closed.
        """
        self._notify(lambda each: each.put_event(event))

    def end(self) -> None:
        """End the streamers that have not closed."""
        listeners, self._listeners = self._current(), None
        _notify_all(listeners, _end)

    def fail(self, error: BaseException) -> None:
        """Pass the generation's *error* to the streamers that have not closed."""
        listeners, self._listeners = self._current(), None
        _notify_all(listeners, lambda each: each.fail(error))

    def _current(self) -> list[Listener]:
        if self._listeners is None:
            # begin() was not called: the prompts are unknown.
            self._listeners = [listener(streamer, [[]]) for streamer in self.streamers]
        return self._listeners

    def _notify(self, action: Callable[[Listener], None]) -> None:
        listeners = self._current()
        try:
            for each in list(listeners):
                try:
                    action(each)
                except ClosedError:
                    listeners.remove(each)
                    _end(each)
        except BaseException as error:
            failed, listeners[:] = list(listeners), []
            _fail_all(failed, error)
            raise
        if not listeners:
            raise ClosedError("every streamer of this FanOut is closed, so the generation stops")


def _end(each: Listener) -> None:
    # One that has closed may say so again.
    with suppress(ClosedError):
        each.end()


def _notify_all(listeners: list[Listener], action: Callable[[Listener], None]) -> None:
    """Notify all listeners, then raise the first error of any of them."""
    errors: list[BaseException] = []
    for each in listeners:
        try:
            action(each)
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _fail_all(listeners: list[Listener], error: BaseException) -> None:
    """Fail all listeners with *error*; an error of theirs is added to it as a note."""
    try:
        _notify_all(listeners, lambda each: each.fail(error))
    except BaseException as another:
        error.add_note(f"a streamer that was told of this raised {another!r}")
