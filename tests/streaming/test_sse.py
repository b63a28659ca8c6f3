"""Server-sent events, read back by a parser."""

import asyncio
import json
import logging
import math
import re
import threading
from collections.abc import AsyncGenerator
from typing import Any

import attrs
import pytest
import torch
from hypothesis import example, given, strategies as st

from decodekit.decoding import Batcher, Generator, MaxNewTokens
from decodekit.decoding.protocols import Finish
from decodekit.decoding.results.events import AsyncEventStream, Event
from decodekit.decoding.results.logprobs import TokenLogprob
from decodekit.streaming import async_server_sent_events, server_sent_events
from decodekit.testing import ScriptedDecoder

from .scripted_events import TEXTS, Source, events_of


@attrs.define
class Parser:
    """
    The standard's, section 9.2.6 "Interpreting an event stream", from the text at once.

    It gives what a browser would dispatch: type, data and last event id.
    """

    dispatched: list[tuple[str, str, str]] = attrs.field(factory=list)
    comments: list[str] = attrs.field(factory=list)

    def feed(self, stream: str) -> "Parser":
        # Lines end with CR LF, LF or CR, and with nothing else.
        lines = stream.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        data, kind, last_id = "", "", ""
        for line in lines[:-1]:
            if not line:
                if data:
                    self.dispatched.append((kind or "message", data.removesuffix("\n"), last_id))
                data, kind = "", ""
                continue
            field, colon, value = line.partition(":")
            value = value.removeprefix(" ")
            if not field and colon:
                self.comments.append(value)
            elif field == "event":
                kind = value
            elif field == "data":
                data += value + "\n"
            elif field == "id" and "\0" not in value:
                last_id = value
        return self


def data_of(stream: str) -> list[dict[str, Any]]:
    return [json.loads(data) for _, data, _ in Parser().feed(stream).dispatched]


def as_dicts(events: list[Event]) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(event.as_dict())) for event in events]


def generator() -> Generator:
    torch.manual_seed(0)
    return Generator(ScriptedDecoder(torch.randn(31, 11), batch_size=2), stop=MaxNewTokens(8))


class TestServerSentEvents:
    """From an iterator."""

    @pytest.mark.parametrize("per_event", range(1, 9))
    def test_they_parse_back(self, per_event: int) -> None:
        """Every event in order under its number, and the end."""
        events = events_of(TEXTS, per_event)
        stream = "".join(server_sent_events(events))
        dispatched = Parser().feed(stream).dispatched

        assert as_dicts(events) == data_of(stream)[:-1]
        assert [("message", str(i)) for i in range(len(events))] == [(k, i) for k, _, i in dispatched[:-1]]
        assert ("done", "{}") == dispatched[-1][:2]

    @given(
        st.text(max_size=20),
        st.one_of(
            st.none(), st.text(max_size=5), st.integers(), st.tuples(st.integers(), st.text(max_size=3))
        ),
        st.lists(st.floats(max_value=0, allow_nan=False), max_size=2),
    )
    @example("Infinity", None, [-math.inf])
    def test_any_text_survives(self, text: str, matched: Any, logprobs: list[float]) -> None:
        """Line breaks of every kind, separators, quotes, NUL; infinities are no JSON."""
        tokens = tuple(TokenLogprob(i, value, 1, ((i, value),)) for i, value in enumerate(logprobs))
        event = Event(0, tuple(range(len(tokens))), text, Finish("stop", matched), tokens)
        messages = list(server_sent_events([event]))

        assert 2 == len(messages)
        assert as_dicts([event]) == data_of("".join(messages))[:-1]
        # As a number: a text may say so.
        outside_of_strings = re.sub(r'"(?:[^"\\]|\\.)*"', "", "".join(messages))
        assert "Infinity" not in outside_of_strings

    def test_each_message_is_complete(self) -> None:
        """Sent at once, it is dispatched at once."""
        for message in server_sent_events(events_of(TEXTS, 3)):
            assert 1 == len(Parser().feed(message).dispatched)

    def test_what_matched_may_be_anything(self) -> None:
        """An object that JSON does not know is written as Python writes it."""
        event = Event(0, (1,), None, Finish("mine", {1, 2}))

        assert "{1, 2}" == data_of("".join(server_sent_events([event])))[0]["finish"]["matched"]

    def test_no_events_are_an_end(self) -> None:
        """Just that."""
        assert ["event: done\ndata: {}\n\n"] == list(server_sent_events([]))

    def test_a_failure_is_the_last_message(self, caplog: pytest.LogCaptureFixture) -> None:
        """The client learns that there was one; the log has the traceback."""
        source = Source([Event(0, (1,), "a")], RuntimeError("secret path /etc"))
        with caplog.at_level(logging.ERROR):
            messages = list(server_sent_events(source()))

        assert ["message", "failed"] == [kind for kind, _, _ in Parser().feed("".join(messages)).dispatched]
        assert {"error": "the generation failed"} == data_of(messages[-1])[0]
        assert "secret" not in "".join(messages)
        assert "secret path" in caplog.text
        assert "Traceback" in caplog.text
        assert source.closed

    def test_describe_sets_the_message_to_the_client(self) -> None:
        """On one line of JSON, whatever it is."""
        source = Source([], KeyError("x"))
        messages = list(server_sent_events(source(), describe=lambda error: f"{type(error)}\n\r{error}"))

        assert [{"error": "<class 'KeyError'>\n\r'x'"}] == data_of("".join(messages))

    def test_interrupts_are_not_the_generations(self) -> None:
        """They go on; the source is closed."""
        source = Source([], KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            list(server_sent_events(source()))

        assert source.closed

    def test_a_client_that_drops_closes_the_source(self) -> None:
        """Wherever it was, and without another message."""
        source = Source(events_of(TEXTS, 3))
        inner = source()
        messages = server_sent_events(inner)
        next(messages)
        messages.close()

        assert source.closed

    def test_closing_reaches_the_generator(self) -> None:
        """Which serves the next call as if nothing had been."""
        one = generator()
        expected = one([[1, 2], [3]]).ids
        events = one.stream([[1, 2], [3]])
        messages = server_sent_events(events)
        next(messages)
        messages.close()

        assert [] == list(events)
        assert expected == one([[1, 2], [3]]).ids


class TestAsyncServerSentEvents:
    """From an asynchronous iterator."""

    def test_the_same_messages(self) -> None:
        """As from the events of a call."""

        async def read() -> list[str]:
            return [message async for message in async_server_sent_events(generator().astream([[1, 2], [3]]))]

        assert list(server_sent_events(generator().stream([[1, 2], [3]]))) == asyncio.run(read())

    def test_comments_while_nothing_comes(self) -> None:
        """A parser skips them; the next event is not lost by them."""

        async def slow() -> AsyncEventStream:
            yield Event(0, (1,), "a")
            await released.wait()
            yield Event(0, (2,), "b")

        async def read() -> list[str]:
            messages = []
            async for message in async_server_sent_events(slow(), keep_alive=0.01):
                messages.append(message)
                if len(messages) == 4:
                    released.set()
            return messages

        released = asyncio.Event()
        messages = asyncio.run(read())
        parsed = Parser().feed("".join(messages))

        assert [": keep-alive\n\n"] * 3 == messages[1:4]
        assert ["a", "b"] == [data["text"] for data in data_of("".join(messages))[:-1]]
        assert set(parsed.comments) == {"keep-alive"}

    def test_closing_ends_a_request(self) -> None:
        """Also where its next event is not awaited at that time."""
        decoder = ScriptedDecoder(torch.zeros(31, 11), batch_size=1, max_length=4000)

        async def read() -> list[str]:
            with Batcher(decoder) as batcher:
                handle = batcher.submit(Generator(decoder, stop=MaxNewTokens(3000)).parts, [1, 2])
                messages = async_server_sent_events(handle)
                await anext(messages)
                await messages.aclose()
                return handle.result(60).finish_reasons

        assert ["cancelled"] == asyncio.run(read())

    @pytest.mark.parametrize("seconds", [0, -1.0, math.nan, True])
    def test_comments_without_a_pause_are_refused(self, seconds: float) -> None:
        """At once, and before the source is asked for anything."""

        async def no_events() -> AsyncEventStream:
            pytest.fail("asked")
            yield

        with pytest.raises(ValueError, match=f"'keep_alive' must be > 0 or None: got {seconds!r}"):
            async_server_sent_events(no_events(), keep_alive=seconds)

    def test_a_failure_is_the_last_message(self, caplog: pytest.LogCaptureFixture) -> None:
        """As in the other."""

        async def failing() -> AsyncEventStream:
            yield Event(0, (1,), "a")
            raise RuntimeError("secret")

        async def read() -> list[str]:
            return [message async for message in async_server_sent_events(failing())]

        with caplog.at_level(logging.ERROR):
            messages = asyncio.run(read())

        assert ["message", "failed"] == [kind for kind, _, _ in Parser().feed("".join(messages)).dispatched]
        assert "secret" not in "".join(messages)
        assert "RuntimeError: secret" in caplog.text

    @pytest.mark.parametrize("drop", ["close", "cancel", "cancel-often"])
    def test_a_client_that_drops_closes_the_source(self, drop: str) -> None:
        """Also while the next event is awaited, and by a framework that cancels again and again."""
        closed: list[str] = []

        async def endless() -> AsyncEventStream:
            try:
                yield Event(0, (1,), "a")
                await asyncio.sleep(3600)
            finally:
                for _ in range(3):
                    await asyncio.sleep(0)
                closed.append("closed")

        async def read(messages: AsyncGenerator[str, None]) -> None:
            async for _ in messages:
                if drop == "close":
                    break
            await messages.aclose()

        async def main() -> None:
            source = endless()
            task = asyncio.ensure_future(read(async_server_sent_events(source)))
            await asyncio.sleep(0.01)
            while drop != "close" and not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=None if drop == "cancel" else 0)
            await asyncio.wait([task])

            assert ["closed"] == closed
            assert task.cancelled() == (drop != "close")

        asyncio.run(main())

    def test_a_cancel_while_it_closes_is_not_lost(self) -> None:
        """It is raised when the source has come back."""

        async def slow_to_close() -> AsyncEventStream:
            try:
                await asyncio.sleep(3600)
                yield Event(0, (1,), "a")
            finally:
                await go_on.wait()
                closed.append(True)

        async def read() -> None:
            messages = async_server_sent_events(slow_to_close(), keep_alive=0.01)
            assert ": keep-alive\n\n" == await anext(messages)
            await messages.aclose()

        async def main() -> None:
            task = asyncio.ensure_future(read())
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait([task], timeout=0.01)

            assert not task.done()
            go_on.set()
            await asyncio.wait([task])

            assert task.cancelled()
            assert [True] == closed

        closed: list[bool] = []
        go_on = asyncio.Event()
        asyncio.run(main())

    def test_a_client_that_drops_during_a_forward(self) -> None:
        """The thread comes back first; then the decoder serves the next call."""
        entered, go_on = threading.Event(), threading.Event()

        class Slow(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                entered.set()
                assert go_on.wait(10)
                return super().forward(ids, cache_pos)

        torch.manual_seed(0)
        one = Generator(Slow(torch.randn(31, 11)), stop=MaxNewTokens(8))

        async def main() -> None:
            task = asyncio.ensure_future(anext(async_server_sent_events(one.astream([1, 2]))))
            await asyncio.to_thread(entered.wait, 10)
            for _ in range(3):
                task.cancel()
                await asyncio.wait([task], timeout=0.01)

            assert not task.done()
            go_on.set()
            await asyncio.wait([task])

            assert task.cancelled()
            assert 1 == len(asyncio.all_tasks())

        asyncio.run(main())

        assert generator()([1, 2]).ids == one([1, 2]).ids

    def test_closing_reaches_the_generator(self) -> None:
        """No task is left behind, and the decoder serves the next call."""
        one = generator()
        expected = one([[1, 2], [3]]).ids

        async def main() -> None:
            events = one.astream([[1, 2], [3]])
            messages = async_server_sent_events(events)
            await anext(messages)
            await messages.aclose()

            assert [] == [event async for event in events]
            assert 1 == len(asyncio.all_tasks())

        asyncio.run(main())

        assert expected == one([[1, 2], [3]]).ids
