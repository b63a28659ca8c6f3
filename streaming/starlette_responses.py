"""
Answers of Starlette and FastAPI that end a request when the client disconnects.

Starlette is optional, ``pip install "decodekit[serve]"``. This module imports it, and is itself imported
where it is used.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from ..decoding.results.generation import Generation
from ..decoding.serving.request_handle import RequestHandle

try:
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
except ImportError as error:
    raise ImportError('these answers need Starlette: pip install "decodekit[serve]"') from error


class Closes(Protocol):
    """What the messages are made from."""

    async def aclose(self) -> None:
        """End the generation, if it has not ended."""


class EventStreamResponse(StreamingResponse):
    """
    Send the messages of a ``text/event-stream``, and close their source however the response ends.

    Starlette itself leaves a body that a client does not read to its end to the garbage collector.
    """

    def __init__(self, messages: AsyncGenerator[str, None], source: Closes) -> None:
        # Caches and nginx must not buffer the events.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(messages, headers=headers, media_type="text/event-stream")
        self._messages, self._source = messages, source

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the messages, then close them and their source."""
        async with aclosing(self._source), aclosing(self._messages):
            await super().__call__(scope, receive, send)


async def result_unless_disconnected(handle: RequestHandle, request: Request) -> Generation | None:
    """
    Wait for the end of a request to a batcher; a client that disconnects cancels it.

    Args:
        handle: The request.

        request: The client's, whose body has been read.

    Returns:
        The result; None where the client has disconnected.

    Raises:
        Exception: What a part of the request or the decoder raised.
    """

    async def cancel_when_gone() -> None:
        # After the body, the next message is the disconnect.
        await request.receive()
        handle.cancel()

    gone = asyncio.create_task(cancel_when_gone())
    try:
        result = await handle
        return None if gone.done() else result
    finally:
        gone.cancel()
