"""Ray Serve replicas: equal to the generator, and nothing is decoded after a cancellation."""

import asyncio
import builtins
import http.client
import importlib.util
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from decodekit.decoding import Batcher, Generator, Logprobs, MaxNewTokens, Sample, StopStrings
from decodekit.decoding.results.events import Event
from decodekit.decoding.results.generation import Generation
from decodekit.neuron_backend import compile_decoder
from decodekit.processors import Temperature
from decodekit.streaming.ray_serve import Replica, serve_app
from decodekit.testing import ScriptedDecoder

from . import ray_cluster
from .ray_cluster import FORBIDDEN, SLOWLY, TOKENS, forwards, settled

ROOT = Path(__file__).parents[2]
PAIR = ROOT / "examples" / "pair"
PATIENCE = 120
"""Seconds after which a cluster counts as hanging, on a busy machine."""

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or importlib.util.find_spec("starlette") is None,
    reason='Ray Serve is not installed: pip install "decodekit[ray]"',
)


def scripted(stop: Any = None, tokenizer: Any = None, batch_size: int = 2) -> Generator:
    """A generator of 12 random tokens a row."""
    vocab = 11 if tokenizer is None else len(tokenizer)
    table = torch.randn(31, vocab, generator=torch.Generator().manual_seed(1))
    decoder = ScriptedDecoder(table, batch_size=batch_size)
    return Generator(decoder, sampler=Sample(seed=3), stop=stop or MaxNewTokens(12), tokenizer=tokenizer)


def dicts(result: Generation) -> list[dict[str, Any]]:
    """The collected result as a replica tells it."""
    rows = [
        Event(
            row,
            tuple(ids),
            None if result.text is None else result.text[row],
            result.finishes[row],
            None if result.logprobs is None else tuple(result.logprobs[row]),
        )
        for row, ids in enumerate(result.ids)
    ]
    return [row.as_dict() for row in rows]


def added_up(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same from the events, by definition: everything that was said, in order."""
    rows: dict[int, dict[str, Any]] = {}
    for event in events:
        row = rows.setdefault(event["row"], {"row": event["row"], "ids": []})
        assert "finish" not in row
        row["ids"] += event["ids"]
        if "text" in event:
            row["text"] = row.get("text", "") + event["text"]
        if "logprobs" in event:
            row["logprobs"] = row.get("logprobs", []) + event["logprobs"]
        if "finish" in event:
            row["finish"] = event["finish"]
    return [rows[number] for number in sorted(rows)]


def messages(body: str) -> list[tuple[str, Any]]:
    """Names and data of server-sent events, the format's own rules."""
    found = []
    assert body.endswith("\n\n")
    for block in body.removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            found.append((fields.get("event", "message"), json.loads(fields["data"])))
    return found


@attrs.define(eq=False)
class Answer:
    """A response as a server hands it on."""

    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    chunks: list[str] = attrs.field(factory=list)

    @property
    def body(self) -> str:
        return "".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(replica: Replica, body: Any, *, method: str = "POST", leave_after: int | None = None) -> Answer:
    """Send *body* as HTTP; the client disconnects after so many chunks, or stays to the end."""
    from starlette.requests import Request

    answer, gone = Answer(), asyncio.Event()
    said = body if isinstance(body, bytes) else json.dumps(body).encode()
    incoming: list[dict[str, Any]] = [{"type": "http.request", "body": said, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message["body"]:
            answer.chunks.append(message["body"].decode())
            if len(answer.chunks) == leave_after:
                gone.set()

    scope = {"type": "http", "method": method, "path": "/", "headers": [], "query_string": b""}
    response = await replica(Request(scope, receive))
    await response(scope, receive, send)
    return answer


@needs_ray
class TestHTTP:
    """What clients without Python get."""

    @pytest.mark.parametrize(
        "prompt", [pytest.param([1, 2, 3], id="one"), pytest.param([[1, 2], [3]], id="several")]
    )
    def test_the_answer_is_what_the_generator_gives(self, prompt: Any) -> None:
        """At once or event by event; and under the random streams asked for."""
        replica = Replica(scripted)
        for options in (
            {},
            {"random_streams": None},
            {"random_streams": [5, 4] if isinstance(prompt[0], list) else [5]},
        ):
            expected = dicts(scripted()(prompt, **options))
            whole = asyncio.run(ask(replica, {"prompt": prompt, **options}))
            streamed = asyncio.run(ask(replica, {"prompt": prompt, "stream": True, **options}))

            assert (200, {"rows": expected}) == (whole.status, whole.json)
            *events, last = messages(streamed.body)

            assert (200, "text/event-stream; charset=utf-8") == (
                streamed.status,
                streamed.headers["content-type"],
            )
            assert ("done", {}) == last
            assert {"message"} == {name for name, _ in events}
            assert expected == added_up([data for _, data in events])

    def test_text(self) -> None:
        """A generator with a tokenizer takes texts and gives texts, with what was matched."""
        tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
        stop = StopStrings(["standard"], tokenizer) | MaxNewTokens(30)

        def build() -> Generator:
            return scripted(stop, tokenizer)

        prompts = ["def f(", "∀ é 語"]
        expected = dicts(build()(prompts))
        whole = asyncio.run(ask(Replica(build), {"prompt": prompts}))
        streamed = asyncio.run(ask(Replica(build), {"prompt": prompts, "stream": True}))

        assert ["max_new_tokens", "stop_string"] == [row["finish"]["reason"] for row in expected]
        assert expected == whole.json["rows"]
        assert expected == added_up([data for name, data in messages(streamed.body) if name == "message"])

    @pytest.mark.parametrize("settings", [{}, {"top": 2}, {"top": 3, "stage": "processed"}])
    def test_log_probabilities(self, settings: dict[str, Any]) -> None:
        """Those that the request names, at once or event by event; none for null."""
        replica, prompt = Replica(scripted), [[1, 2], [3]]
        result = scripted()(prompt, logprobs=Logprobs(**settings))
        expected = dicts(result)
        body = {"prompt": prompt, "logprobs": settings}
        whole = asyncio.run(ask(replica, body))
        streamed = asyncio.run(ask(replica, {**body, "stream": True}))
        without = asyncio.run(ask(replica, {"prompt": prompt, "logprobs": None}))

        assert all(len(row["ids"]) == len(row["logprobs"]) for row in expected)
        assert expected == whole.json["rows"]
        assert expected == added_up([data for name, data in messages(streamed.body) if name == "message"])
        assert dicts(scripted()(prompt)) == without.json["rows"]

    def test_each_event_is_sent_when_it_happens(self) -> None:
        """One chunk an event: none waits for the next."""
        answer = asyncio.run(ask(Replica(scripted), {"prompt": [1], "stream": True}))

        assert 12 + 1 == len(answer.chunks)
        assert "no-cache" == answer.headers["cache-control"]

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            pytest.param(b"", "the body must be JSON: ", id="nothing"),
            pytest.param(b"{", "the body must be JSON: ", id="half"),
            pytest.param(b"\xff\xfe\xfd", "the body must be JSON: ", id="bytes"),
            pytest.param(b"[" * 100_000, "the body must be JSON: ", id="deep"),
            pytest.param([1], "the body must be a JSON object with a 'prompt'", id="list"),
            pytest.param({"prompts": [1]}, "the body must be a JSON object with a 'prompt'", id="no-prompt"),
            pytest.param(
                {"prompt": [1], "top_p": 1}, "the body must have no other keys than prompt", id="key"
            ),
            pytest.param({"prompt": [1], "stream": 1}, "'stream' must be true or false: got 1", id="stream"),
            pytest.param(
                {"prompt": [1], "logprobs": 5}, "'logprobs' must be an object of 'top' and", id="logprobs"
            ),
            pytest.param(
                {"prompt": [1], "logprobs": {"n": 5}}, "'logprobs' must be an object of 'top' and", id="n"
            ),
            pytest.param(
                {"prompt": [1], "logprobs": {"top": True}}, "'top' must be a whole number: got True", id="top"
            ),
            pytest.param({"prompt": [1], "logprobs": {"top": 12}}, "'top' must be <= 11", id="top-12"),
            pytest.param(
                {"prompt": [1], "logprobs": {"stage": "TopK"}},
                "'stage' must be 'raw', 'processed'",
                id="stage",
            ),
            pytest.param({"prompt": None}, "'prompts' must be a text, a chat, ids", id="null"),
            pytest.param({"prompt": {}}, "a mapping as prompt must have 'input_ids'", id="object"),
            pytest.param({"prompt": []}, "'prompts' must be 1 or more: got 0", id="none"),
            pytest.param({"prompt": [[]]}, "prompt 0 must have 1 to 64 tokens", id="empty"),
            pytest.param({"prompt": [1] * 65}, "prompt 0 must have 1 to 64 tokens", id="too-long"),
            pytest.param({"prompt": [11]}, "the ids of prompt 0 must be 0 to 10", id="vocabulary"),
            pytest.param({"prompt": [1.5]}, "a prompt must be a list of ids", id="fraction"),
            pytest.param({"prompt": [True]}, "a prompt must be a list of ids", id="bool"),
            pytest.param(b'{"prompt": [NaN]}', "a prompt must be a list of ids", id="nan"),
            pytest.param({"prompt": "x"}, "there is no tokenizer", id="text"),
            pytest.param(
                {"prompt": [1], "random_streams": [1, 2]},
                "'random_streams' must be one number",
                id="random_streams",
            ),
            pytest.param(
                {"prompt": [1], "random_streams": ["a"]}, "'random_streams' must be whole numbers", id="words"
            ),
            pytest.param(
                {"prompt": [1], "random_streams": [2**64]}, "'random_streams' must fit", id="64-bits"
            ),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    def test_a_wrong_request(self, body: Any, message: str, stream: bool) -> None:
        """It is told what is wrong, and nothing is decoded."""
        generator = scripted()
        if isinstance(body, dict):
            body = {"stream": stream, **body}
        answer = asyncio.run(ask(Replica(lambda: generator), body))

        assert 400 == answer.status
        assert message in answer.json["error"]
        assert [] == generator.decoder.forwards

    @pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
    def test_another_method(self, method: str) -> None:
        """The answer says which one."""
        answer = asyncio.run(ask(Replica(scripted), {"prompt": [1]}, method=method))

        assert (405, "POST") == (answer.status, answer.headers["allow"])

    def test_a_generation_that_fails(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The stream ends with an event that says so, the log says why, and the next request is answered."""
        generator = scripted()
        expected = dicts(generator([1, 2]))
        replica = Replica(lambda: generator)
        monkeypatch.setattr(
            ScriptedDecoder, "forward", failing(ScriptedDecoder.forward, RuntimeError("a secret"), after=4)
        )
        streamed = asyncio.run(ask(replica, {"prompt": [3, 1], "stream": True}))
        names = [name for name, _ in messages(streamed.body)]

        assert [*["message"] * 4, "failed"] == names
        assert "secret" not in streamed.body
        assert "a secret" in caplog.text
        with pytest.raises(RuntimeError, match="a secret"):
            asyncio.run(ask(replica, {"prompt": [3, 1]}))
        monkeypatch.undo()

        assert expected == asyncio.run(ask(replica, {"prompt": [1, 2]})).json["rows"]


def failing(real: Callable[..., Tensor], error: Exception, after: int) -> Callable[..., Tensor]:
    """A forward that fails after so many."""
    count = itertools.count()

    def forward(*args: Any) -> Tensor:
        if next(count) >= after:
            raise error
        return real(*args)

    return forward


@attrs.define(eq=False)
class Gated(ScriptedDecoder):
    """A decoder whose forward waits until it is let through."""

    entered: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0), init=False)
    gate: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0), init=False)

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        self.entered.release()
        assert self.gate.acquire(timeout=10)
        return ScriptedDecoder.forward(self, ids, cache_pos)


async def entered(decoder: Gated) -> None:
    """Wait for a forward to begin, without blocking the event loop."""
    assert await asyncio.to_thread(decoder.entered.acquire, timeout=10)


def gated(batch_size: int = 1) -> tuple[Gated, Replica]:
    table = torch.randn(31, 11, generator=torch.Generator().manual_seed(1))
    decoder = Gated(table, batch_size=batch_size)
    return decoder, Replica(lambda: Generator(decoder, stop=MaxNewTokens(12)))


def open_generator() -> Generator:
    """The generator of :func:`gated`, whose gate is open."""
    decoder, _ = gated()
    decoder.gate.release(1000)
    return Generator(decoder, stop=MaxNewTokens(12))


async def consume(events: AsyncIterator[Event]) -> None:
    """Read to the end."""
    async for _ in events:
        pass


@needs_ray
class TestCancelling:
    """A cancelled request stops decoding."""

    @pytest.mark.parametrize("chunks", [1, 5])
    def test_a_client_that_disconnects(self, chunks: int) -> None:
        """The forward that runs is the last one, and the next answer is right."""

        async def run() -> tuple[int, Any]:
            decoder, replica = gated()
            body = {"prompt": [1], "stream": True}
            task = asyncio.ensure_future(ask(replica, body, leave_after=chunks))
            for _ in range(chunks):
                await entered(decoder)
                decoder.gate.release()
            await task
            decoder.gate.release(1000)
            answer = await ask(replica, {"prompt": [2, 1]})
            return len(decoder.forwards), answer.json["rows"]

        forwards, rows = asyncio.run(run())
        expected = open_generator()([2, 1])

        assert dicts(expected) == rows
        assert chunks <= forwards - expected.statistics.forwards <= chunks + 1

    @pytest.mark.parametrize(
        "request_of",
        [
            pytest.param(lambda replica: replica.generate([1]), id="generate"),
            pytest.param(lambda replica: consume(replica.stream([1])), id="stream"),
            pytest.param(lambda replica: ask(replica, {"prompt": [1]}), id="http"),
            pytest.param(lambda replica: ask(replica, {"prompt": [1], "stream": True}), id="events"),
        ],
    )
    def test_a_request_that_is_cancelled(self, request_of: Callable[[Replica], Any]) -> None:
        """The forward that runs comes to its end, and there is no other."""

        async def run() -> list[int]:
            decoder, replica = gated()
            task = asyncio.ensure_future(request_of(replica))
            for _ in range(3):
                await entered(decoder)
                decoder.gate.release()
            await entered(decoder)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            decoder.gate.release(100)
            # Its row is free when the forward that runs has come to its end.
            await replica.generate([2, 1])
            return decoder.forwards

        assert 4 + len(open_generator()([2, 1]).ids[0]) == len(asyncio.run(run()))

    def test_a_stream_that_is_closed(self) -> None:
        """As Ray closes what it no longer reads."""

        async def run() -> int:
            decoder, replica = gated()
            async with aclosing(replica.stream([1])) as events:
                decoder.gate.release()
                await anext(events)
            decoder.gate.release(1000)
            await replica.generate([2])
            return len(decoder.forwards)

        assert 1 <= asyncio.run(run()) - open_generator()([2]).statistics.forwards <= 2


@needs_ray
class TestConcurrency:
    """Several requests to one replica."""

    def test_a_long_forward_does_not_hold_up_the_replica(self) -> None:
        """While a forward waits, the event loop runs: it is what lets it through."""

        async def run() -> list[Event]:
            decoder, replica = gated()
            generated = asyncio.ensure_future(replica.generate([1]))
            for _ in range(12):
                await entered(decoder)
                decoder.gate.release()
            return await generated

        (row,) = asyncio.run(run())

        assert 12 == len(row.ids)

    def test_requests_that_take_turns(self) -> None:
        """Each gets what it gets alone."""
        prompts = [[1], [2, 3], [4, 5, 6], [7]]
        expected = [dicts(scripted()(prompt)) for prompt in prompts]

        async def run() -> list[Any]:
            replica = Replica(scripted)
            return await asyncio.gather(*(ask(replica, {"prompt": prompt}) for prompt in prompts))

        assert expected == [answer.json["rows"] for answer in asyncio.run(run())]

    def test_requests_run_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A forward serves as many requests as the decoder has rows, or as many prompts of one."""
        submitted: list[Any] = []
        real = Batcher.submit_many

        def submit_many(*args: Any, **options: Any) -> Any:
            submitted.append(args)
            return real(*args, **options)

        monkeypatch.setattr(Batcher, "submit_many", submit_many)

        async def run(prompts: list[Any]) -> tuple[list[list[Event]], int]:
            decoder, replica = gated(batch_size=2)
            requests = [asyncio.ensure_future(replica.generate(prompt)) for prompt in prompts]
            while len(submitted) < len(prompts):
                await asyncio.sleep(0.001)
            submitted.clear()
            decoder.gate.release(1000)
            return [await request for request in requests], len(decoder.forwards)

        for prompts in ([[1], [2]], [[[1], [2]]]):
            found, forwards = asyncio.run(run(prompts))

            assert [dicts(open_generator()(prompt)) for prompt in prompts] == [
                [row.as_dict() for row in rows] for rows in found
            ]
            assert forwards <= 12 + 1

    def test_more_prompts_than_rows(self) -> None:
        """They take turns, under the streams of their numbers."""
        prompts = [[1], [2], [3], [4], [5]]
        answer = asyncio.run(ask(Replica(scripted), {"prompt": prompts}))

        assert dicts(scripted()(prompts)) == answer.json["rows"]

    @pytest.mark.parametrize("stream", [False, True])
    def test_what_cannot_share_a_decoder(self, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
        """One request runs at a time, as a call of the generator, and the log says why."""

        def build() -> Generator:
            return attrs.evolve(scripted(), processors=Temperature([0.3, 2.0]))

        prompts = [[[1], [2]], [[3, 4], [5]], [[6], [7, 8]]]
        generator = build()

        async def run() -> list[Any]:
            replica = Replica(lambda: generator)
            bodies = [{"prompt": prompt, "stream": stream} for prompt in prompts]
            return await asyncio.gather(*(ask(replica, body) for body in bodies))

        answers = asyncio.run(run())
        found = [
            added_up([data for name, data in messages(answer.body) if name == "message"])
            if stream
            else answer.json["rows"]
            for answer in answers
        ]

        alone = build()

        assert [dicts(alone(prompt)) for prompt in prompts] == found
        # Nothing is fed again, as it would be if they alternated.
        assert sorted(alone.decoder.forwards) == sorted(generator.decoder.forwards)  # type: ignore[attr-defined]
        assert "one request runs at a time: Temperature has a value for each row" in caplog.text

    def test_a_client_of_a_request_that_takes_turns_disconnects(self) -> None:
        """It gives up its turn."""
        generator = attrs.evolve(scripted(MaxNewTokens(40)), processors=Temperature([0.3, 2.0]))

        async def run() -> Any:
            replica = Replica(lambda: generator)
            await ask(replica, {"prompt": [[1], [2]], "stream": True}, leave_after=3)
            return (await ask(replica, {"prompt": [[3], [4]]})).json["rows"]

        assert dicts(generator([[3], [4]])) == asyncio.run(run())

    def test_a_replica_that_is_gone(self) -> None:
        """Its thread ends."""
        before = set(threading.enumerate())
        replica = Replica(scripted)
        (thread,) = set(threading.enumerate()) - before
        del replica
        thread.join(PATIENCE)

        assert not thread.is_alive()


class TestParameters:
    """What is refused when the application is made."""

    def test_without_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error says what to install."""
        real = builtins.__import__

        def without(name: str, *rest: Any, **named: Any) -> Any:
            if name.partition(".")[0] == "ray":
                raise ModuleNotFoundError(name)
            return real(name, *rest, **named)

        monkeypatch.setattr(builtins, "__import__", without)

        with pytest.raises(ImportError, match=re.escape('pip install "decodekit[ray]"')):
            serve_app(scripted)

    @pytest.mark.parametrize("cores", [-1, 1.5, True, "2", None])
    def test_neuron_cores(self, serve: Any, cores: Any) -> None:
        """A whole number, from 0 on."""
        message = re.escape(f"'neuron_cores' must be a whole number >= 0: got {cores!r}")
        with pytest.raises(ValueError, match=message):
            serve_app(scripted, neuron_cores=cores)

    def test_neuron_cores_twice(self, serve: Any) -> None:
        """One of the two would be ignored."""
        with pytest.raises(ValueError, match="'neuron_cores' must be given once: got 2 and"):
            serve_app(scripted, neuron_cores=2, ray_actor_options={"resources": {"neuron_cores": 4}})

    def test_a_generator_in_place_of_what_builds_it(self, serve: Any) -> None:
        """It would have to be pickled, with its decoder."""
        generator = attrs.evolve(scripted())
        with pytest.raises(TypeError, match="'build' must make a Generator: got a Generation"):
            Replica(lambda: generator([1]))  # type: ignore[arg-type, return-value]
        with pytest.raises(TypeError, match="'build' must be callable and make a Generator: got a str"):
            serve_app("generator")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            pytest.param({"replicas": 2}, TypeError, id="unknown"),
            pytest.param({"num_replicas": 0}, ValueError, id="no-replicas"),
            pytest.param({"max_ongoing_requests": 0}, ValueError, id="no-requests"),
            pytest.param({"autoscaling_config": {"max_replicas": 0}}, ValueError, id="autoscaling"),
            pytest.param(
                {"num_replicas": 2, "autoscaling_config": {"max_replicas": 3}}, ValueError, id="both"
            ),
            pytest.param({"ray_actor_options": {"cores": 1}}, ValueError, id="unknown-actor-option"),
        ],
    )
    def test_what_ray_refuses(self, serve: Any, options: Any, error: type[Exception]) -> None:
        """Options reach Ray as they are, which knows its own rules."""
        with pytest.raises(error):
            serve_app(scripted, **options)


@pytest.fixture(scope="module")
def serve() -> Any:
    """Ray Serve, or a skip."""
    with warnings.catch_warnings():
        # Its settings are declared in a way that pydantic no longer likes.
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytest.importorskip("ray.serve", reason='not installed: pip install "decodekit[ray]"')


class TestLocally:
    """Ray's local mode: an application in this process, without a cluster."""

    def test_a_handle_is_like_the_generator(self, serve: Any) -> None:
        """The same events, and what they add up to; what it refuses, the caller hears."""
        handle = serve.run(serve_app(scripted), _local_testing_mode=True)
        expected = scripted()([[1, 2], [3]], random_streams=[4, 5])
        events = handle.options(stream=True).stream.remote([[1, 2], [3]], random_streams=[4, 5])

        assert list(scripted().stream([[1, 2], [3]], random_streams=[4, 5])) == list(events)
        rows = handle.generate.remote([[1, 2], [3]], random_streams=[4, 5]).result()

        assert dicts(expected) == [row.as_dict() for row in rows]
        with pytest.raises(ValueError, match="the ids of prompt 0 must be 0 to 10"):
            handle.generate.remote([11]).result()
        with pytest.raises(TypeError, match="temperature"):
            handle.generate.remote([1], temperature=1).result()


@attrs.define(eq=False)
class Cluster:
    """A Ray that serves."""

    folder: Path
    seen: dict[str, Any]
    environment: dict[str, str]

    @contextmanager
    def sent(self, body: Any) -> Iterator[http.client.HTTPConnection]:
        """A connection on which *body* has been sent, closed in the end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.seen["port"], timeout=PATIENCE)
        with closing(connection):
            connection.request("POST", "/", json.dumps(body))
            yield connection

    def answer(self, body: Any) -> tuple[int, str]:
        """Status and body of the whole answer."""
        with self.sent(body) as connection, connection.getresponse() as response:
            return response.status, response.read().decode()


@pytest.fixture(scope="module")
def cluster(serve: Any) -> Iterator[Cluster]:
    """In processes of its own, under a short path, since sockets lie in it; nothing of it remains."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            # Else a token is left in the home folder.
            "RAY_AUTH_MODE": "disabled",
            # No memory monitor: other processes may fill this machine's memory.
            "RAY_memory_monitor_refresh_ms": "0",
        }
        program = subprocess.Popen(
            [sys.executable, ray_cluster.__file__, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
        )
        clock = threading.Timer(PATIENCE, os.killpg, (program.pid, signal.SIGKILL))
        clock.start()
        try:
            assert program.stdout is not None
            line = program.stdout.readline()
            if not line:
                pytest.fail(f"the cluster did not start:\n{program.communicate()[1]}")
            clock.cancel()
            yield Cluster(Path(folder), json.loads(line), environment)
            program.communicate(timeout=PATIENCE)
        finally:
            clock.cancel()
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
                program.communicate()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    """The replicas' generator, in this process."""
    return ray_cluster.generator(tmp_path_factory.mktemp("alone") / "forwards", pause=0)


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
class TestOnACluster:
    """A real Ray of two processors and four NeuronCores that are none."""

    def test_replicas_see_cores_of_their_own(self, cluster: Cluster) -> None:
        """Autoscaling from 2 to 2 replicas has started two, and each was named two cores."""
        cores = sorted(file.read_text() for file in cluster.folder.glob("*.cores"))

        assert ["0,1", "2,3"] == cores

    def test_a_handle(self, cluster: Cluster, alone: Generator) -> None:
        """Events as the generator gives them, the first before the second step is over."""
        assert [event.as_dict() for event in alone.stream([[SLOWLY, 2, 3], [4]])] == cluster.seen["streamed"]
        assert dicts(alone([1, 2, 3], random_streams=[7])) == cluster.seen["generated"]
        assert 1 <= cluster.seen["forwards at the first event"] < TOKENS

    def test_a_handle_that_cancels(self, cluster: Cluster) -> None:
        """Most of the text is never decoded."""
        assert 1 <= cluster.seen["forwards of the cancelled stream"] < TOKENS
        assert 1 <= cluster.seen["forwards of the cancelled generation"] < TOKENS

    def test_a_handle_is_told_what_is_wrong(self, cluster: Cluster) -> None:
        """In the words of the generator."""
        assert "the ids of prompt 0 must be 0 to 10, the vocabulary: got 11" in cluster.seen["refused"]
        assert 0 == cluster.seen["forwards of the refused"]

    def test_http(self, cluster: Cluster, alone: Generator) -> None:
        """Whole and streamed, the first event before the text is complete."""
        status, whole = cluster.answer({"prompt": [2, 3]})

        assert (200, {"rows": dicts(alone([2, 3]))}) == (status, json.loads(whole))
        before = forwards(cluster.folder)
        with (
            cluster.sent({"prompt": [SLOWLY, 3], "stream": True}) as connection,
            connection.getresponse() as response,
        ):
            first = response.read1()
            at_first = forwards(cluster.folder) - before
            *events, last = messages((first + response.read()).decode())

        assert 1 <= at_first < TOKENS
        assert ("done", {}) == last
        assert dicts(alone([SLOWLY, 3])) == added_up([data for _, data in events])

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_client_that_disconnects(self, cluster: Cluster, alone: Generator, stream: bool) -> None:
        """The rest is never decoded, and the next request is answered rightly."""
        before = forwards(cluster.folder)
        with cluster.sent({"prompt": [SLOWLY, 6], "stream": stream}):
            while forwards(cluster.folder) == before:
                time.sleep(0.01)

        assert 1 <= settled(cluster.folder) - before < TOKENS
        _, whole = cluster.answer({"prompt": [6, 5]})

        assert dicts(alone([6, 5])) == json.loads(whole)["rows"]

    def test_http_that_goes_wrong(self, cluster: Cluster) -> None:
        """A bad request gets the reason; a server error gives no details."""
        before = forwards(cluster.folder)
        status, refused = cluster.answer({"prompt": [11]})

        assert (400, before) == (status, forwards(cluster.folder))
        assert "the ids of prompt 0 must be 0 to 10" in json.loads(refused)["error"]
        status, failed = cluster.answer({"prompt": [FORBIDDEN]})
        _, events = cluster.answer({"prompt": [FORBIDDEN], "stream": True})

        assert 500 == status
        assert ["failed"] == [name for name, _ in messages(events)]
        assert "secret" not in failed + events

    def test_a_replica_that_is_stopped(self, cluster: Cluster, alone: Generator) -> None:
        """It finishes the requests that run, all of them at a time, and takes no more."""
        prompts = [[SLOWLY, 7], [SLOWLY, 8], [SLOWLY, 9]]

        assert [dicts(alone(prompt)) for prompt in prompts] == list(map(added_up, cluster.seen["stopped"]))
        assert "ended" == cluster.seen["after the stop"]

    def test_the_batch_job(self, cluster: Cluster, tmp_path: Path) -> None:
        """Every prompt is completed as by itself under its number's random stream, whatever the batches."""
        prompts = [f"def f{number}(" for number in range(7)]
        (tmp_path / "prompts").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
        subprocess.run(
            [
                *(sys.executable, ROOT / "examples" / "batch_job.py", "prompts", "completions"),
                *("--model", PAIR / "target", "--target", "eager", "--max-tokens", "8", "--batch-size", "3"),
            ],
            check=True,
            capture_output=True,
            timeout=PATIENCE,
            cwd=tmp_path,
            env={**cluster.environment, "RAY_ADDRESS": cluster.seen["address"]},
        )
        files = (tmp_path / "completions").glob("*.json")
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        completed = sorted(lines, key=lambda line: line["number"])
        tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
        generator = Generator(
            compile_decoder(str(PAIR / "target"), max_length=512, widths=(1, 64), target="eager"),
            processors=Temperature(0.7),
            sampler=Sample(seed=0),
            stop=MaxNewTokens(8),
            tokenizer=tokenizer,
        )

        assert prompts == [line["prompt"] for line in completed]
        for line in completed:
            assert generator(line["prompt"], random_streams=[line["number"]]).text == [line["completion"]]
