"""Who listens to a generation: streamers of ours, and Hugging Face's."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs
import torch

from ..optional_protocols import HearsFailure, HearsPrompts
from .events import Event, EventStream


class ClosedError(Exception):
    """What a streamer raises when nobody reads on: the generation ends there, and nothing is wrong."""


@runtime_checkable
class Ends(Protocol):
    """Whatever is told of the end of a generation."""

    def end(self) -> None:
        """There are no more events: the generation is complete, or nobody reads on."""
        ...


@runtime_checkable
class Streamer(Ends, Protocol):
    """
    Is told every event while it happens.

    It may also be told of the prompts (:class:`~..optional_protocols.HearsPrompts`) and of an
    error (:class:`~..optional_protocols.HearsFailure`).
    """

    def put_event(self, event: Event) -> None:
        """
        Take an event.

        Raising stops the generation; :class:`ClosedError` stops it quietly, here and in ``begin``.
        """
        ...


@runtime_checkable
class HuggingFaceStreamer(Ends, Protocol):
    """What ``generate`` of transformers takes."""

    def put(self, value: torch.Tensor) -> None:
        """Take a prompt ``[1, length]``, then new ids ``[n]``."""
        ...


def forward(events: Iterator[Event], streamer: Any, prompts: list[list[int]]) -> EventStream:
    """
    Tell *streamer* of every event, and pass the events on.

    The streamer hears of the end whatever happens, so that nobody waits for it in vain: ``end()``
    when the events are exhausted or the returned iterator is closed, ``fail(error)`` when the
    events or the streamer itself raised, which goes on to the caller.

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
    """Tell *streamer*, if it is one, that the generation ended with *error* before it began."""
    if isinstance(streamer, type):
        return
    if isinstance(streamer, HearsFailure):
        streamer.fail(error)
    elif isinstance(streamer, Ends):
        streamer.end()


def _forward(events: Iterator[Event], listener: "Listener") -> EventStream:
    try:
        if _hears(listener.begin):
            for event in events:
                if not _hears(listener.put_event, event):
                    break
                yield event
        _close(events)
    except GeneratorExit:
        _close(events)
        listener.end()
        raise
    except BaseException as error:
        _close(events)
        listener.fail(error)
        raise
    listener.end()


def _hears(tell: Callable[..., None], *said: Event) -> bool:
    """Whether the listener that is told wants to hear more. A part that raises the same is not asked."""
    try:
        tell(*said)
    except ClosedError:
        return False
    return True


def _close(events: Iterator[Event]) -> None:
    getattr(events, "close", lambda: None)()


def takes_events(streamer: Any) -> bool:
    """Whether *streamer* is a :class:`Streamer`."""
    # A class has the functions, and nobody to call them on.
    return isinstance(streamer, Streamer) and not isinstance(streamer, type)


def takes_ids(streamer: Any) -> bool:
    """Whether *streamer* is one as Hugging Face's are; one that takes events as well is told those."""
    return isinstance(streamer, HuggingFaceStreamer) and not isinstance(streamer, type)


def listener(streamer: Any, prompts: list[list[int]]) -> "Listener":
    """
    *streamer* for a generation from *prompts*; arguments and errors as of :func:`forward`.

    It has been told of nothing yet.
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


@attrs.frozen(eq=False)
class _Ours:
    _streamer: Streamer
    _prompts: list[list[int]]

    def begin(self) -> None:
        if isinstance(self._streamer, HearsPrompts):
            self._streamer.begin([list(prompt) for prompt in self._prompts])

    def put_event(self, event: Event) -> None:
        self._streamer.put_event(event)

    def end(self) -> None:
        self._streamer.end()

    def fail(self, error: BaseException) -> None:
        report_failure(self._streamer, error)


@attrs.frozen(eq=False)
class _HuggingFace:
    _streamer: Any
    _prompt: list[int]

    def begin(self) -> None:
        self._streamer.put(torch.tensor([self._prompt], dtype=torch.int64))

    def put_event(self, event: Event) -> None:
        if event.ids:
            self._streamer.put(torch.tensor(event.ids, dtype=torch.int64))

    def end(self) -> None:
        self._streamer.end()

    def fail(self, error: BaseException) -> None:
        # There is no other way to tell it, and who waits for it must not wait for ever.
        self._streamer.end()


Listener: TypeAlias = _Ours | _HuggingFace
"""A streamer of either kind for one generation; it has ``begin``, ``put_event``, ``end`` and ``fail``."""
