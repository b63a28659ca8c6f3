"""
Server-sent events: a generation's events as ``text/event-stream``.

The format is the `HTML standard's, section 9.2
<https://html.spec.whatwg.org/multipage/server-sent-events.html>`_. Each event is one message
whose data is :meth:`Event.as_dict <decodekit.decoding.results.events.Event.as_dict>` as a single line
of JSON::

    id: 0
    data: {"row": 0, "ids": [5, 6], "text": "Hello"}

The last message is ``event: done``, or ``event: failed`` if the generation raised (not ``error``,
which a browser's ``EventSource`` uses for a lost connection). Close an ``EventSource`` at either:
it reconnects when a connection ends and would start a new generation.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable
from typing import Any

from ..decoding.results.background import returned
from ..decoding.results.events import Event
from ..decoding.validation import is_iterable

_LOG = logging.getLogger(__name__)

_KEEP_ALIVE = ": keep-alive\n\n"
"""A comment, skipped by parsers, that keeps proxies from closing the connection."""


def generic_message(error: Exception) -> str:
    """Default message to a client about *error*, without details."""
    return "the generation failed"


def server_sent_events(
    events: Iterable[Event], *, describe: Callable[[Exception], str] = generic_message
) -> Generator[str, None, None]:
    """
    Format *events* as messages of a ``text/event-stream``.

    Closing this iterator closes the iterator of *events*: it ends the decoding of a stream, and not that of a
    request to a batcher, which others may read.

    Args:
        events: For example ``generator.stream(prompt)``.

        describe: Makes the client's message from an error. The error itself, with its traceback, is
            only logged.

    Returns:
        Messages, each complete, to be encoded as UTF-8.

    >>> for message in server_sent_events([Event(row=0, ids=(5, 6), text="Hello")]):
    ...     print(message, end="")
    id: 0
    data: {"row": 0, "ids": [5, 6], "text": "Hello"}
    <BLANKLINE>
    event: done
    data: {}
    <BLANKLINE>
    """
    if not is_iterable(events):
        raise TypeError(f"'events' must be events, one after the other: got {events!r}")
    source = iter(events)
    number = 0
    try:
        while True:
            try:
                event = next(source)
            except StopIteration:
                break
            except Exception as error:
                yield _failed(error, describe)
                return
            yield _message(_fields(event), number)
            number += 1
        yield _message({}, name="done")
    finally:
        getattr(source, "close", lambda: None)()


def async_server_sent_events(
    events: AsyncIterable[Event],
    *,
    keep_alive: float | None = 15.0,
    describe: Callable[[Exception], str] = generic_message,
) -> AsyncGenerator[str, None]:
    """
    Asynchronous :func:`server_sent_events`, with keep-alive comments.

    Closing this iterator closes *events*, also a request to a batcher, which ends the decoding.

    With Starlette or FastAPI, a handler returns ``StreamingResponse(async_server_sent_events(
    generator.astream(prompt)), media_type="text/event-stream")``: a client that disconnects cancels it.

    Args:
        events: For example ``generator.astream(prompt)``.

        keep_alive: Seconds without an event after which a comment is sent, so that proxies keep the
            connection open; above 0, or None for never.

        describe: Makes the client's message from an error. The error itself, with its traceback, is
            only logged.

    Returns:
        Messages, each complete, to be encoded as UTF-8.

    Raises:
        TypeError: *events* cannot be read in an ``async for``.

        ValueError: *keep_alive* is not positive.
    """
    if keep_alive is not None and (isinstance(keep_alive, bool) or not keep_alive > 0):
        raise ValueError(f"'keep_alive' must be > 0 or None: got {keep_alive!r}")
    if not isinstance(events, AsyncIterable):
        raise TypeError(f"'events' must be events, one after the other, in async for: got {events!r}")
    return _messages(events, keep_alive, describe)


async def _messages(
    events: AsyncIterable[Event], keep_alive: float | None, describe: Callable[[Exception], str]
) -> AsyncGenerator[str, None]:
    source = aiter(events)
    step: asyncio.Future[Event] | None = None
    number = 0
    try:
        while True:
            step = asyncio.ensure_future(anext(source))
            while not (await asyncio.wait([step], timeout=keep_alive))[0]:
                yield _KEEP_ALIVE
            try:
                event = step.result()
            except StopAsyncIteration:
                break
            except Exception as error:
                yield _failed(error, describe)
                return
            yield _message(_fields(event), number)
            number += 1
        yield _message({}, name="done")
    finally:
        if step is not None:
            step.cancel()
        try:
            await returned(step)
        finally:
            # A request is ended by closing it, not what reads it.
            for one in (source,) if source is events else (source, events):
                if (close := getattr(one, "aclose", None)) is not None:
                    await close()


def _fields(event: Event) -> dict[str, Any]:
    if not isinstance(event, Event):
        raise TypeError(f"'events' must be of the class Event: got {event!r}, a {type(event).__name__}")
    return event.as_dict()


def _failed(error: Exception, describe: Callable[[Exception], str]) -> str:
    _LOG.error("a generation failed while its events were sent", exc_info=error)
    return _message({"error": describe(error)}, name="failed")


def _message(data: dict[str, Any], number: int | None = None, name: str | None = None) -> str:
    # JSON escapes line breaks, so the data is one line.
    text = json.dumps(data, ensure_ascii=False, default=repr)
    head = "" if number is None else f"id: {number}\n"
    head += "" if name is None else f"event: {name}\n"
    return f"{head}data: {text}\n\n"
