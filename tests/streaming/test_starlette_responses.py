"""Answers of Starlette: what they are made from is closed however they end."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import attrs
import pytest
import torch

from decodekit.decoding import Batcher, Generator, MaxNewTokens
from decodekit.testing import ScriptedDecoder

pytest.importorskip("starlette", reason='not installed: pip install "decodekit[serve]"')
from starlette.requests import Request

from decodekit.streaming.starlette_responses import EventStreamResponse, result_unless_disconnected

SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}


@attrs.define(eq=False)
class Source:
    """Messages, and whether they and their source were closed."""

    closed: list[str] = attrs.field(factory=list)

    async def messages(self) -> AsyncGenerator[str, None]:
        try:
            for number in range(3):
                yield f"data: {number}\n\n"
        finally:
            self.closed.append("messages")

    async def aclose(self) -> None:
        self.closed.append("source")


async def for_ever() -> Any:
    """A client that stays."""
    await asyncio.Event().wait()


async def gone() -> dict[str, str]:
    """A client that has disconnected."""
    return {"type": "http.disconnect"}


class TestEventStreamResponse:
    def test_all_of_it(self) -> None:
        """One chunk a message, and headers against buffering."""
        source, sent = Source(), []

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(EventStreamResponse(source.messages(), source)(SCOPE, for_ever, send))

        assert ["messages", "source"] == source.closed
        assert [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n", b""] == [one["body"] for one in sent[1:]]
        headers = dict(sent[0]["headers"])
        assert (b"text/event-stream; charset=utf-8", b"no-cache", b"no") == (
            headers[b"content-type"],
            headers[b"cache-control"],
            headers[b"x-accel-buffering"],
        )

    def test_a_client_that_is_gone(self) -> None:
        """While a message is sent."""
        source = Source()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await for_ever()

        asyncio.run(EventStreamResponse(source.messages(), source)(SCOPE, gone, send))

        assert "source" == source.closed[-1]

    def test_a_connection_that_fails(self) -> None:
        """Before the first message: the messages have not begun, and their source is closed."""
        source = Source()

        async def send(message: Any) -> None:
            raise OSError("no connection")

        response = EventStreamResponse(source.messages(), source)
        with pytest.raises(OSError, match="no connection"):
            asyncio.run(response({**SCOPE, "asgi": {"spec_version": "2.3"}}, for_ever, send))

        assert ["source"] == source.closed

    def test_a_task_that_is_cancelled(self) -> None:
        """As a server does that does not wait."""
        source = Source()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await for_ever()

        async def run() -> None:
            task = asyncio.ensure_future(
                EventStreamResponse(source.messages(), source)(SCOPE, for_ever, send)
            )
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(run())

        assert ["messages", "source"] == source.closed


class TestResult:
    """The result of a request to a batcher that waits for its reader."""

    @staticmethod
    def finish_reasons(
        receive: Any, max_unread: int | None = None, tokens: int = 5
    ) -> tuple[list[str | None] | None, Any]:
        """Those of the result that a client gets, and those of the request."""
        table = torch.randn(31, 9, generator=torch.Generator().manual_seed(0))
        decoder = ScriptedDecoder(table, max_length=tokens + 59)
        parts = Generator(decoder, stop=MaxNewTokens(tokens)).parts

        async def run() -> tuple[list[str | None] | None, Any]:
            async with Batcher(decoder) as batcher:
                handle = batcher.submit(parts, [1], max_unread=max_unread)
                result = await result_unless_disconnected(handle, Request(SCOPE, receive))
                return None if result is None else result.finish_reasons, (await handle).finish_reasons

        return asyncio.run(run())

    def test_a_client_that_stays(self) -> None:
        """It gets the result."""
        assert (["max_new_tokens"], ["max_new_tokens"]) == self.finish_reasons(for_ever)

    def test_a_client_that_is_gone(self) -> None:
        """There is none, and the request, which would go on for seconds, is cancelled."""
        assert (None, ["cancelled"]) == self.finish_reasons(gone, max_unread=1, tokens=20_000)
