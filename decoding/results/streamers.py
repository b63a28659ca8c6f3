"""Streamers: consumers of a generation's events, and Hugging Face streamers."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs
import torch

from ..fork_safe_lock import fork_safe_lock
from ..optional_protocols import HearsFailure, HearsPrompts
from .events import Event, EventStream


class ClosedError(Exception):
    """Raised by a streamer whose consumer has gone: ends the generation without an error."""


@runtime_checkable
class Ends(Protocol):
    """A consumer that is notified of the end of a generation."""

    def end(self) -> None:
        """There are no more events: the generation is complete or was closed."""
        ...


@runtime_checkable
class Streamer(Ends, Protocol):
    """
    A consumer of events as they occur.

    It may also receive the prompts (:class:`~..optional_protocols.HearsPrompts`) and errors
    (:class:`~..optional_protocols.HearsFailure`).
    """

    def put_event(self, event: Event) -> None:
        """
        Take an event.

        Raising stops the generation; :class:`ClosedError`, here or in ``begin``, stops it quietly, and in
        ``end`` or ``fail`` is no error.
        """
        ...


@runtime_checkable
class HuggingFaceStreamer(Ends, Protocol):
    """The streamer interface of transformers' ``generate``."""

    def put(self, value: torch.Tensor) -> None:
        """Take a prompt ``[1, length]``, then new ids ``[n]``."""
        ...


def forward(events: Iterator[Event], streamer: Any, prompts: list[list[int]]) -> EventStream:
    """
    Pass every event to *streamer* and yield it.

    The streamer is notified of the end in any case: ``end()`` when the events are exhausted or the
    returned iterator is closed, ``fail(error)`` when the events or the streamer raised; the error is
    re-raised.

    Args:
        events: Closed along with the returned iterator.

        streamer: A :class:`Streamer`, or a Hugging Face streamer (``put(ids)`` and ``end()``).
            The latter gets the prompt first, ``[1, length]`` int64, then the new ids of each
            event, ``[n]``.

        prompts: The ids of every row's prompt.

    Raises:
        TypeError: *streamer* is neither. Nothing has been decoded.

        ValueError: A Hugging Face streamer with more than one prompt. Nothing has been decoded.
    """
    return _forward(events, listener(streamer, prompts))


def report_failure(streamer: Any, error: BaseException) -> None:
    """
    Notify *streamer*, if it is one, that a generation failed with *error* before it started.

    One that another generation has begun does not hear of it: to that one it would be the end.
    """
    if not isinstance(streamer, type) and not _is_in_use(streamer):
        _fail(streamer, error)


def _fail(streamer: Any, error: BaseException) -> None:
    with contextlib.suppress(ClosedError):
        if isinstance(streamer, HearsFailure):
            streamer.fail(error)
        elif isinstance(streamer, Ends):
            streamer.end()


def _forward(events: Iterator[Event], listener: "Listener") -> EventStream:
    try:
        if _accepts(listener.begin):
            for event in events:
                if not _accepts(listener.put_event, event):
                    break
                yield event
        _close(events)
    except GeneratorExit:
        _close(events)
        _end(listener)
        raise
    except BaseException as error:
        _close(events)
        listener.fail(error)
        raise
    _end(listener)


def _end(listener: "Listener") -> None:
    with contextlib.suppress(ClosedError):
        listener.end()


def _accepts(tell: Callable[..., None], *event: Event) -> bool:
    """Whether the listener wants more events. ClosedError counts from the listener only."""
    try:
        tell(*event)
    except ClosedError:
        return False
    return True


def _close(events: Iterator[Event]) -> None:
    getattr(events, "close", lambda: None)()


def takes_events(streamer: Any) -> bool:
    """Whether *streamer* is an instance of :class:`Streamer`."""
    # A class has the methods too, but is no instance.
    return isinstance(streamer, Streamer) and not isinstance(streamer, type)


def takes_ids(streamer: Any) -> bool:
    """Whether *streamer* is a Hugging Face streamer; one that takes events as well gets those."""
    return isinstance(streamer, HuggingFaceStreamer) and not isinstance(streamer, type)


def listener(streamer: Any, prompts: list[list[int]]) -> "Listener":
    """
    A listener for one generation from *prompts*; arguments and errors as of :func:`forward`.

    Nothing has been passed to the streamer yet.
    """
    if takes_events(streamer):
        return _Ours(streamer, prompts)
    if not takes_ids(streamer):
        raise TypeError(
            "'streamer' must have put_event(event) and end(), or put(ids) and end() as Hugging Face's "
            f"have: got {streamer!r}, a {type(streamer).__name__}"
        )
    if len(prompts) != 1:
        raise ValueError(
            f"a Hugging Face streamer takes one prompt: {len(prompts)}. Iterate over "
            "generator.stream(prompts) and use event.row"
        )
    return _HuggingFace(streamer, prompts[0])


_begun: "weakref.WeakSet[Listener]" = weakref.WeakSet()
"""Those of generations that have begun and not ended."""

_begun_lock = fork_safe_lock()


def _is_in_use(streamer: Any) -> bool:
    with _begun_lock:
        return any(one.streamer is streamer for one in _begun)


def _note_begin(listener: "Listener") -> None:
    with _begun_lock:
        _begun.add(listener)


def _note_end(listener: "Listener") -> bool:
    """Whether it had begun."""
    with _begun_lock:
        had_begun = listener in _begun
        _begun.discard(listener)
    return had_begun


def _fail_listener(listener: "Listener", error: BaseException) -> None:
    if _note_end(listener):
        _fail(listener.streamer, error)
    else:
        report_failure(listener.streamer, error)


@attrs.frozen(eq=False)
class _Ours:
    streamer: Streamer
    _prompts: list[list[int]]

    def begin(self) -> None:
        if isinstance(self.streamer, HearsPrompts):
            self.streamer.begin([list(prompt) for prompt in self._prompts])
        _note_begin(self)

    def put_event(self, event: Event) -> None:
        self.streamer.put_event(event)

    def end(self) -> None:
        _note_end(self)
        self.streamer.end()

    def fail(self, error: BaseException) -> None:
        _fail_listener(self, error)


@attrs.frozen(eq=False)
class _HuggingFace:
    streamer: Any
    _prompt: list[int]

    def begin(self) -> None:
        self.streamer.put(torch.tensor([self._prompt], dtype=torch.int64))
        _note_begin(self)

    def put_event(self, event: Event) -> None:
        if event.ids:
            self.streamer.put(torch.tensor(event.ids, dtype=torch.int64))

    def end(self) -> None:
        _note_end(self)
        self.streamer.end()

    def fail(self, error: BaseException) -> None:
        # It may have no other method than end(), and its consumer must not wait for ever.
        _fail_listener(self, error)


Listener: TypeAlias = _Ours | _HuggingFace
"""A streamer of either kind for one generation; it has ``begin``, ``put_event``, ``end`` and ``fail``."""
