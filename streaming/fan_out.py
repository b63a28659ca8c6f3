from collections.abc import Callable
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
    Tell several streamers of one generation.

    Each hears of every event in the order in which they were given, and of the end exactly once.

    - One that raises :class:`~decodekit.decoding.results.streamers.ClosedError` is ended and hears no
      more; the others go on. When all of them have, the generation ends.
    - When one raises anything else, all of them are told of the failure, and the error goes on.

    The generation waits for each: one whose reader is behind holds up the others. Hugging Face's
    streamers may be among them; those take one prompt.

    >>> from decodekit.streaming import Callback
    >>> both = FanOut(Callback(lambda event: print(event.ids)), Callback(lambda event: print(event.text)))
    >>> both.put_event(Event(row=0, ids=(5, 6), text="Hello"))
    (5, 6)
    Hello
    """

    streamers: tuple[Any, ...] = attrs.field(validator=_streamers)
    # Those that still listen; None while there is no generation.
    _listeners: list[Listener] | None = attrs.field(init=False, repr=False, default=None)

    def __init__(self, *streamers: Any) -> None:
        self.__attrs_init__(streamers)

    def begin(self, prompts: list[list[int]]) -> None:
        """Show the prompts to those who want them."""
        self._listeners = [listener(streamer, prompts) for streamer in self.streamers]
        self._tell(lambda one: one.begin())

    def put_event(self, event: Event) -> None:
        """
        Pass an event on to everybody who still listens.

        Raises:
            ClosedError: Nobody is left.
        """
        self._tell(lambda one: one.put_event(event))

    def end(self) -> None:
        """End those who still listen."""
        listeners, self._listeners = self._current(), None
        _tell_all(listeners, lambda one: one.end())

    def fail(self, error: BaseException) -> None:
        """Tell those who still listen that the generation raised *error*."""
        listeners, self._listeners = self._current(), None
        _tell_all(listeners, lambda one: one.fail(error))

    def _current(self) -> list[Listener]:
        if self._listeners is None:
            # Nobody said what the prompts are, so nobody can be shown them.
            self._listeners = [listener(streamer, [[]]) for streamer in self.streamers]
        return self._listeners

    def _tell(self, something: Callable[[Listener], None]) -> None:
        listeners = self._current()
        try:
            for one in list(listeners):
                try:
                    something(one)
                except ClosedError:
                    listeners.remove(one)
                    one.end()
        except BaseException as error:
            told, listeners[:] = list(listeners), []
            _fail_all(told, error)
            raise
        if not listeners:
            raise ClosedError("every streamer of this FanOut is closed, so the generation stops")


def _tell_all(listeners: list[Listener], something: Callable[[Listener], None]) -> None:
    """Tell everybody, then raise what the first of those raised that did."""
    errors: list[BaseException] = []
    for one in listeners:
        try:
            something(one)
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _fail_all(listeners: list[Listener], error: BaseException) -> None:
    """Tell everybody of *error*; what they raise about it is noted on it."""
    try:
        _tell_all(listeners, lambda one: one.fail(error))
    except BaseException as another:
        error.add_note(f"a streamer that was told of this raised {another!r}")
