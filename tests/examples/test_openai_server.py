"""The example server, asked by OpenAI's own client: its answers are those of a generator's call."""

import asyncio
import importlib.util
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import attrs
import httpx
import openai
import pytest
import torch
import uvicorn
from starlette.testclient import TestClient
from torch import Tensor
from transformers import AutoTokenizer

from decodekit.decoding import (
    Batcher,
    EndOfSequence,
    Generator,
    Greedy,
    Logprobs,
    MaxNewTokens,
    RequestHandle,
    Sample,
    StopStrings,
)
from decodekit.neuron_backend import compile_decoder
from decodekit.processors import FrequencyPenalty, PresencePenalty, Temperature, TopP
from decodekit.streaming.chat_completion import ChatCompletion
from decodekit.testing import ScriptedDecoder

ROOT = pathlib.Path(__file__).parents[2]
PAIR = ROOT / "examples" / "pair" / "target"
SERVER = ROOT / "examples" / "openai_server.py"
PATIENCE = 60.0
"""Seconds after which a server counts as hanging, on a busy machine."""

STARTING = 240.0
"""The same, for a process that imports and compiles first."""

TEMPLATE = (
    "{% for m in messages %}# {{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}def {% endif %}"
)
NAME = "pair"
USER = [{"role": "user", "content": "a function that adds two numbers"}]
OTHERS = [
    [{"role": "user", "content": text}] for text in ("a stack", "read a file", "ein Wörterbuch: 語", "x")
]


def module(path: pathlib.Path) -> ModuleType:
    """Import the script at *path*."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@attrs.frozen(eq=False)
class Served:
    """A server that runs."""

    batcher: Batcher
    url: str
    uvicorn: uvicorn.Server

    def ask(self, messages: Any = None, **parameters: Any) -> Any:
        """What OpenAI's client gets."""
        with openai.OpenAI(
            api_key="none", base_url=f"{self.url}/v1", max_retries=0, timeout=PATIENCE
        ) as client:
            given = {"model": NAME, "messages": messages or USER, **parameters}
            answer = client.chat.completions.create(**given)
            return list(answer) if parameters.get("stream") else answer

    def post(self, content: bytes, kind: str = "application/json") -> httpx.Response:
        """The response to a body of any bytes."""
        url, headers = f"{self.url}/v1/chat/completions", {"Content-Type": kind}
        return httpx.post(url, content=content, headers=headers, timeout=PATIENCE)


@contextmanager
def serving(generator: Generator, **options: Any) -> Iterator[Served]:
    """The server in a thread, until it has stopped."""
    batcher = Batcher(generator.decoder, **options)
    app = module(SERVER).ChatServer(generator, NAME, batcher).app()
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", ws="none", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Served(batcher, f"http://127.0.0.1:{port}", server)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
    assert not thread.is_alive()


def wait_until(holds: Any) -> None:
    """Look until it holds, or give up."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The bundled model's, with a chat template."""
    found = AutoTokenizer.from_pretrained(PAIR)
    found.chat_template = TEMPLATE
    return found


def eager(tokenizer: Any) -> Generator:
    """The bundled model."""
    decoder = compile_decoder(
        PAIR, batch_size=3, max_length=128, widths=(1, 16), target="eager", dtype="float32"
    )
    return Generator(decoder, tokenizer=tokenizer, stop=MaxNewTokens(24))


@pytest.fixture(scope="module")
def alone(tokenizer: Any) -> Generator:
    """A generator of its own decoder."""
    return eager(tokenizer)


@pytest.fixture(scope="module")
def served(tokenizer: Any) -> Iterator[Served]:
    """A server of the bundled model."""
    with serving(eager(tokenizer), max_waiting=32) as server:
        yield server


def text_of(answer: Any) -> Any:
    """The text of the first choice."""
    return answer.choices[0].message.content


@attrs.define
class Streamed:
    """What the chunks of one choice add up to."""

    role: str | None = None
    text: str = ""
    reason: str | None = None
    logprobs: list[Any] = attrs.field(factory=list)


def added_up(chunks: list[Any]) -> list[Streamed]:
    """The choices of a stream."""
    rows: dict[int, Streamed] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            row = rows.setdefault(choice.index, Streamed())
            assert row.reason is None
            row.role = choice.delta.role or row.role
            row.text += choice.delta.content or ""
            row.logprobs += choice.logprobs.content if choice.logprobs else []
            row.reason = choice.finish_reason
    return [rows[index] for index in sorted(rows)]


def spelled(logprobs: list[Any]) -> list[Any]:
    """The tokens, and the most probable ones in their place."""
    return [(one.token, one.bytes, [top.token for top in one.top_logprobs]) for one in logprobs]


def numbers(logprobs: list[Any]) -> list[float]:
    """The log-probabilities of both."""
    return [value for one in logprobs for value in (one.logprob, *(top.logprob for top in one.top_logprobs))]


class TestAnswers:
    """What a client is told."""

    def test_the_answer_is_that_of_a_generator(self, served: Served, alone: Generator) -> None:
        """With the chain, the sampler and the stop that the parameters name."""
        answer = served.ask(
            temperature=0.7, top_p=0.9, seed=5, frequency_penalty=0.4, presence_penalty=0.3, max_tokens=20
        )
        chain = FrequencyPenalty(0.4) | PresencePenalty(0.3) | Temperature(0.7) | TopP(0.9)
        generator = attrs.evolve(alone, processors=chain, sampler=Sample(5), stop=MaxNewTokens(20))
        result = generator(USER)

        assert result.text == [text_of(answer)]
        assert ("chat.completion", NAME) == (answer.object, answer.model)
        assert ("assistant", "length") == (answer.choices[0].message.role, answer.choices[0].finish_reason)
        assert (len(result.prompts[0]), len(result.ids[0]), len(result.sequences[0])) == (
            answer.usage.prompt_tokens,
            answer.usage.completion_tokens,
            answer.usage.total_tokens,
        )

    def test_temperature_0_is_greedy(self, served: Served, alone: Generator) -> None:
        """Whatever the seed and top-p; a content may be in parts, and null is not given."""
        expected = attrs.evolve(alone, sampler=Greedy())(USER).text
        parts = [{"role": "user", "content": [{"type": "text", "text": USER[0]["content"]}], "name": None}]
        options = {"temperature": 0, "max_completion_tokens": 24}

        assert expected == [text_of(served.ask(**options))]
        assert expected == [text_of(served.ask(parts, seed=3, top_p=0.5, stop=None, **options))]

    @pytest.mark.parametrize("n", [1, 3])
    def test_streaming_adds_up_to_the_answer(self, served: Served, n: int) -> None:
        """Text, reasons, log-probabilities and usage, of each choice."""
        options = {"n": n, "seed": 2, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}
        whole = served.ask(**options)
        chunks = served.ask(stream=True, stream_options={"include_usage": True}, **options)

        for choice, row in zip(whole.choices, added_up(chunks), strict=True):
            message = choice.message
            assert (message.role, message.content, choice.finish_reason) == (row.role, row.text, row.reason)
            assert spelled(choice.logprobs.content) == spelled(row.logprobs)
            # Programs of other widths round differently.
            assert numbers(choice.logprobs.content) == pytest.approx(numbers(row.logprobs), abs=1e-4)
        assert whole.usage == chunks[-1].usage
        assert [] == chunks[-1].choices
        assert {"chat.completion.chunk"} == {chunk.object for chunk in chunks}
        assert 1 == len({chunk.id for chunk in chunks})
        assert all(chunk.usage is None for chunk in chunks[:-1])

    def test_a_stream_without_usage(self, served: Served) -> None:
        """Its last chunk has the reason."""
        chunks = served.ask(stream=True, max_tokens=3)

        assert "length" == chunks[-1].choices[0].finish_reason

    def test_n(self, served: Served, alone: Generator) -> None:
        """Samples of as many random streams, also where they are more than the decoder's rows."""
        answer = served.ask(n=5, seed=8, max_tokens=8)
        expected = attrs.evolve(alone, sampler=Sample(8), stop=MaxNewTokens(8))([USER] * 5)

        assert expected.text == [choice.message.content for choice in answer.choices]
        assert [0, 1, 2, 3, 4] == [choice.index for choice in answer.choices]
        assert sum(map(len, expected.ids)) == answer.usage.completion_tokens

    def test_seed(self, served: Served) -> None:
        """The same text from the same seed; one of its own without."""
        texts = [text_of(served.ask(seed=seed, max_tokens=12)) for seed in (1, 1, 2, None, None)]

        assert texts[0] == texts[1]
        assert 4 == len(set(texts))

    @pytest.mark.parametrize("several", [False, True])
    def test_stop(self, served: Served, alone: Generator, several: bool) -> None:
        """The text ends before the string."""
        greedy = text_of(served.ask(temperature=0, max_tokens=24))
        string = greedy[5:9]
        answer = served.ask(temperature=0, max_tokens=24, stop=["∀", string] if several else string)
        stop = StopStrings([string], alone.tokenizer) | MaxNewTokens(24)

        assert attrs.evolve(alone, sampler=Greedy(), stop=stop)(USER).text == [text_of(answer)]
        assert greedy.partition(string)[0] == text_of(answer)
        assert "stop" == answer.choices[0].finish_reason

    def test_an_end_of_sequence(self, served: Served, alone: Generator) -> None:
        """A bias of 100 for it leaves nothing else."""
        (end,) = next(part.ids for part in alone.stop_condition.conditions if isinstance(part, EndOfSequence))
        answer = served.ask(logit_bias={str(end): 100}, max_tokens=24)

        assert ("", "stop", 1) == (
            text_of(answer),
            answer.choices[0].finish_reason,
            answer.usage.completion_tokens,
        )

    def test_logprobs(self, served: Served, alone: Generator) -> None:
        """Of the decoder's own logits, whatever the chain; their bytes are the text's."""
        answer = served.ask(temperature=0.5, seed=3, max_tokens=16, logprobs=True, top_logprobs=4)
        generator = attrs.evolve(alone, processors=Temperature(0.5), sampler=Sample(3), stop=MaxNewTokens(16))
        result = generator(USER, logprobs=Logprobs(top=4))
        assert result.logprobs is not None
        told = answer.choices[0].logprobs.content

        assert text_of(answer).encode() == b"".join(bytes(one.bytes) for one in told)
        assert [one.logprob for one in result.logprobs[0]] == pytest.approx(
            [one.logprob for one in told], abs=1e-4
        )
        for expected, one in zip(result.logprobs[0], told, strict=True):
            assert [p for _, p in expected.top] == pytest.approx(
                [top.logprob for top in one.top_logprobs], abs=1e-4
            )
        assert [] == served.ask(max_tokens=1, logprobs=True).choices[0].logprobs.content[0].top_logprobs
        assert served.ask(max_tokens=1).choices[0].logprobs is None

    def test_an_answer_is_written_in_a_thread(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        """Many log-probabilities take time, in which other clients are served."""
        whole, loops = ChatCompletion.whole, []

        def recording(completion: ChatCompletion, result: Any) -> Any:
            loops.append(asyncio._get_running_loop())
            return whole(completion, result)

        monkeypatch.setattr(ChatCompletion, "whole", recording)
        served.ask(max_tokens=2, logprobs=True)

        assert [None] == loops

    def test_a_json_schema(self, served: Served) -> None:
        """Every answer is of the schema, of any seed; ``json_object`` is any object."""
        schema = {
            "type": "object",
            "properties": {"kind": {"enum": ["list", "dict"]}, "sizes": {"type": "array", "maxItems": 2}},
            "required": ["kind", "sizes"],
            "additionalProperties": False,
        }
        schema["properties"]["sizes"]["items"] = {"type": "integer", "minimum": 0, "maximum": 99}
        wanted = {"type": "json_schema", "json_schema": {"name": "made", "schema": schema, "strict": True}}
        answer = served.ask(n=4, seed=1, response_format=wanted)

        assert {"stop"} == {choice.finish_reason for choice in answer.choices}
        for choice in answer.choices:
            made = json.loads(choice.message.content)

            assert {"kind", "sizes"} == made.keys()
            assert made["kind"] in ("list", "dict")
            assert all(type(size) is int and 0 <= size <= 99 for size in made["sizes"])
            assert len(made["sizes"]) <= 2
        anything = served.ask(temperature=0, response_format={"type": "json_object"}, max_tokens=2)

        assert text_of(anything).startswith("{")

    def test_requests_at_a_time(self, served: Served) -> None:
        """Each gets what it gets alone, more of them than rows."""
        wanted: list[dict[str, Any]] = [
            {"messages": OTHERS[0], "temperature": 0, "max_tokens": 20},
            {"messages": OTHERS[1], "seed": 1, "top_p": 0.8, "n": 2, "max_tokens": 9},
            {"messages": OTHERS[2], "seed": 2, "presence_penalty": 1.5, "max_tokens": 30},
            {"messages": OTHERS[3], "seed": 3, "temperature": 1.4, "stop": ["e"], "max_tokens": 30},
            {"messages": USER, "seed": 4, "response_format": {"type": "json_object"}, "max_tokens": 14},
        ]
        expected = [[choice.message.content for choice in served.ask(**one).choices] for one in wanted]
        with ThreadPoolExecutor(len(wanted)) as threads:
            streamed = list(threads.map(lambda one: added_up(served.ask(stream=True, **one)), wanted))

        assert expected == [[row.text for row in rows] for rows in streamed]

    def test_models(self, served: Served) -> None:
        """The one there is."""
        with openai.OpenAI(api_key="none", base_url=f"{served.url}/v1", timeout=PATIENCE) as client:
            assert [NAME] == [model.id for model in client.models.list()]


class TestRefusals:
    """What is refused is told why, before anything is decoded."""

    @pytest.mark.parametrize(
        ("parameters", "parameter", "message"),
        [
            pytest.param({"extra_body": {"top_k": 5}}, "top_k", "'top_k' is not supported", id="unknown"),
            pytest.param({"tools": []}, "tools", "'tools' is not supported", id="tools"),
            pytest.param({"extra_body": {"user": 1}}, "user", "'user' must be", id="user"),
            pytest.param({"store": True}, "store", "'store' must be false", id="store"),
            pytest.param({"temperature": 3}, "temperature", "'temperature' must be 0 to 2", id="hot"),
            pytest.param({"temperature": True}, "temperature", "must be a number", id="bool"),
            pytest.param({"temperature": -1e-40}, "temperature", "'temperature' must be 0 to 2", id="below"),
            pytest.param({"top_p": 0}, "top_p", "'top_p' must be > 0", id="top_p"),
            pytest.param({"seed": 1.5}, "seed", "'seed' must be a whole number", id="seed"),
            pytest.param({"max_tokens": 0}, "max_tokens", "'max_tokens' must be >= 1", id="max_tokens"),
            pytest.param(
                {"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", "must not be given", id="two"
            ),
            pytest.param({"n": 0}, "n", "'n' must be >= 1", id="n"),
            pytest.param({"n": 129}, "n", "'n' must be <= 128", id="many"),
            pytest.param({"frequency_penalty": -3}, "frequency_penalty", "must be -2 to 2", id="penalty"),
            pytest.param({"stop": ""}, "stop", "must not be empty", id="stop"),
            pytest.param({"stop": [1]}, "stop", "must be a string or several", id="stop-number"),
            pytest.param({"top_logprobs": 2}, "top_logprobs", "needs 'logprobs'", id="top_logprobs"),
            pytest.param({"logprobs": 2}, "logprobs", "'logprobs' must be", id="logprobs"),
            pytest.param({"logit_bias": {"x": 1}}, "logit_bias", "must have token ids", id="bias"),
            pytest.param({"logit_bias": {"1": 101}}, "logit_bias", "from -100 to 100", id="bias-101"),
            pytest.param(
                {"stream_options": {"include_usage": True}}, "stream_options", "needs 'stream'", id="usage"
            ),
            pytest.param(
                {"response_format": {"type": "xml"}}, "response_format", "must have the type", id="format"
            ),
            pytest.param(
                {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}},
                "response_format",
                "'response_format' is refused",
                id="schema",
            ),
            pytest.param({"messages": [{"role": "tool", "content": "x"}]}, "messages", "'role'", id="role"),
            pytest.param({"messages": [{"role": "user"}]}, "messages", "must be text", id="content"),
            pytest.param(
                {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                "messages",
                "must be text, or a list of text parts",
                id="image",
            ),
            pytest.param(
                {"messages": [{**USER[0], "name": "me"}]}, "messages", "must not have 'name'", id="name"
            ),
            pytest.param(
                {"messages": [{"role": "user", "content": "long " * 200}]},
                None,
                "must have 1 to 128 tokens",
                id="too-long",
            ),
        ],
    )
    def test_a_wrong_request(
        self, served: Served, parameters: dict[str, Any], parameter: str | None, message: str
    ) -> None:
        """With status 400, the reason, and the parameter's name."""
        before = served.batcher.statistics.forwards
        with pytest.raises(openai.BadRequestError, match=message) as raised:
            served.ask(**parameters)

        assert (parameter, "invalid_request_error") == (raised.value.param, raised.value.type)
        assert before == served.batcher.statistics.forwards

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"\xff\xfe",
            b"[1]",
            b"[" * 100_000,
            b'{"model": "pair"}',
            b'{"messages": [], "model": 1}',
        ],
    )
    def test_a_malformed_body(self, served: Served, body: bytes) -> None:
        """No JSON, no object, or nothing that must be there."""
        response = served.post(body)

        assert 400 == response.status_code
        assert "must be" in response.json()["error"]["message"]

    def test_half_a_character(self, served: Served) -> None:
        """A text that is none."""
        body = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "\ud800"}]})

        assert 400 == served.post(body.encode()).status_code

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
    def test_another_content_type(self, served: Served, kind: str) -> None:
        """What a page of another site could send."""
        assert 415 == served.post(json.dumps({"model": NAME, "messages": USER}).encode(), kind).status_code

    @pytest.mark.parametrize("kind", ["Application/JSON", "application/json ; charset=utf-8"])
    def test_a_content_type_in_another_form(self, served: Served, kind: str) -> None:
        """Media types have no case, and white space before a parameter is allowed (RFC 9110)."""
        assert 400 == served.post(b"{}", kind).status_code

    def test_a_large_body(self, served: Served) -> None:
        """It is not read to its end."""
        response = served.post(b" " * (2**22 + 1))

        assert 413 == response.status_code
        assert "at most 4194304 bytes" in response.json()["error"]["message"]

    def test_another_model_path_or_method(self, served: Served) -> None:
        """In the same form."""
        with pytest.raises(openai.NotFoundError, match="the model must be 'pair': got 'gpt'"):
            served.ask(model="gpt")
        response = httpx.get(f"{served.url}/v1/chat/completions", timeout=PATIENCE)

        assert (405, "invalid_request_error") == (response.status_code, response.json()["error"]["type"])
        assert 404 == httpx.get(f"{served.url}/v2", timeout=PATIENCE).status_code

    def test_no_other_request_suffers(self, served: Served) -> None:
        """The same text beside a dozen that are refused."""
        options: dict[str, Any] = {"seed": 6, "max_tokens": 24}
        expected = text_of(served.ask(**options))
        with ThreadPoolExecutor(1) as threads:
            streamed = threads.submit(lambda: added_up(served.ask(stream=True, **options)))
            statuses = {served.post(b'{"model": "pair", "n": -1}').status_code for _ in range(12)}

        assert {400} == statuses
        assert expected == streamed.result()[0].text


@attrs.define(eq=False)
class Gated(ScriptedDecoder):
    """A decoder whose forward waits until it is let through."""

    entered: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0), init=False)
    gate: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0), init=False)

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        self.entered.release()
        assert self.gate.acquire(timeout=PATIENCE)
        return ScriptedDecoder.forward(self, ids, cache_pos)

    def let_through(self, forwards: int) -> None:
        """Let so many begin and end, and the next one begin."""
        for _ in range(forwards):
            assert self.entered.acquire(timeout=PATIENCE)
            self.gate.release()
        assert self.entered.acquire(timeout=PATIENCE)
        self.entered.release()


@pytest.fixture
def gated(tokenizer: Any) -> Generator:
    """One row, of a table."""
    table = torch.randn(31, len(tokenizer), generator=torch.Generator().manual_seed(1))
    return Generator(Gated(table, max_length=128, widths=(1, 64), scored_width=1), tokenizer=tokenizer)


class TestLoad:
    """Many clients, clients that leave, and the end of the server."""

    def test_too_many(self, gated: Generator) -> None:
        """One runs and one waits; the third is told so, and the others are answered."""
        decoder: Any = gated.decoder
        with serving(gated, max_waiting=1) as server, ThreadPoolExecutor(2) as threads:
            answers = [threads.submit(server.ask, seed=seed, max_tokens=6) for seed in (1, 2)]
            # One has the row.
            decoder.let_through(0)
            wait_until(lambda: server.batcher.num_waiting == 1)
            with pytest.raises(openai.RateLimitError, match="at most max_waiting=1 requests may wait"):
                server.ask(max_tokens=6)
            decoder.gate.release(1000)
            texts = [text_of(answer.result(PATIENCE)) for answer in answers]

        assert texts == [
            attrs.evolve(gated, sampler=Sample(seed), stop=MaxNewTokens(6))(USER).text[0] for seed in (1, 2)
        ]

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_client_that_disconnects(
        self, gated: Generator, stream: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The forward that runs is the last one, and the next request is answered."""
        decoder: Any = gated.decoder
        handles: list[RequestHandle] = []
        real = RequestHandle.cancel

        def cancel(handle: RequestHandle) -> None:
            real(handle)
            handles.append(handle)

        monkeypatch.setattr(RequestHandle, "cancel", cancel)
        body = {"model": NAME, "messages": USER, "max_tokens": 60, "stream": stream}
        with serving(gated) as server:
            with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
                sent = json.dumps(body).encode()
                head = (
                    "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(sent)}\r\n\r\n"
                )
                client.sendall(head.encode() + sent)
                decoder.let_through(3)
            wait_until(lambda: handles)
            decoder.gate.release(1000)
            result = handles[0].result(PATIENCE)

            assert ["cancelled"] == result.finish_reasons
            assert 4 == len(decoder.forwards)
            assert 4 == server.batcher.statistics.forwards
            assert 5 == server.ask(max_tokens=5).usage.completion_tokens

    @pytest.mark.parametrize("stream", [False, True])
    def test_the_stop_finishes_what_runs(self, gated: Generator, stream: bool) -> None:
        """The client gets all of it, and there is no other connection."""
        decoder: Any = gated.decoder
        with serving(gated) as server, ThreadPoolExecutor(1) as threads:
            answer = threads.submit(server.ask, stream=stream, seed=1, max_tokens=9)
            decoder.let_through(2)
            server.uvicorn.should_exit = True
            wait_until(lambda: not server.uvicorn.servers[0].is_serving())
            with pytest.raises(openai.APIConnectionError):
                server.ask(max_tokens=1)
            decoder.gate.release(1000)
            found = answer.result(PATIENCE)

        expected = attrs.evolve(gated, sampler=Sample(1), stop=MaxNewTokens(9))(USER).text
        assert expected == [added_up(found)[0].text if stream else text_of(found)]

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_decoder_that_fails(
        self, gated: Generator, stream: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The client is told that it failed, without details, and the next one is answered."""

        def failing(*_: Any) -> Tensor:
            raise RuntimeError("a secret")

        decoder: Any = gated.decoder
        with serving(gated) as server:
            monkeypatch.setattr(Gated, "forward", failing)
            with pytest.raises(openai.APIError, match="the generation failed") as raised:
                server.ask(stream=stream, max_tokens=5)
            monkeypatch.undo()
            decoder.gate.release(1000)

            assert "secret" not in str(raised.value)
            assert 5 == server.ask(max_tokens=5).usage.completion_tokens


def with_template(folder: pathlib.Path) -> pathlib.Path:
    """A copy of the bundled model, whose tokenizer has a chat template."""
    shutil.copytree(PAIR, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def call(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """The program, in this process."""
    monkeypatch.setattr(sys, "argv", [str(SERVER), *options])
    module(SERVER).main()


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("whole", ("--max-waiting", "0"), "--max-waiting must be at least 1: got 0"),
        ("whole", ("--port", "99999"), "--port must be 0 to 65535: got 99999"),
        ("whole", ("--port", "busy"), "Address already in use"),
        ("plain", (), "the tokenizer must have a chat template: got that of plain, with none"),
        ("bare", (), "the model must have a tokenizer beside it: got bare, with none"),
        ("saved", (), "the model must have a tokenizer beside it: got saved, with none"),
        ("saved", ("--max-length", "64"), "--max-length is fixed in a saved decoder: saved"),
        ("absent/model/", (), "'model' must be a folder, or a hub id"),
    ],
)
def test_what_is_wrong_is_refused_before_the_decoder_is_made(
    model: str,
    options: tuple[str, ...],
    expected: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Which takes minutes."""

    def made(*args: Any, **options: Any) -> None:
        raise AssertionError

    monkeypatch.chdir(tmp_path)
    with_template(tmp_path / "whole")
    shutil.copytree(PAIR, tmp_path / "plain")
    shutil.copytree(PAIR, tmp_path / "bare", ignore=shutil.ignore_patterns("token*"))
    if model == "saved":
        compile_decoder("bare", max_length=32, widths=(1, 8), target="eager").save(tmp_path / "saved")
    monkeypatch.setattr(Generator, "from_pretrained", made)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        given = [port if option == "busy" else option for option in options]
        # A port that is free, where none is given: the machine may have a server at the default.
        with pytest.raises(SystemExit) as ended:
            call(monkeypatch, "--port", "0", "--model", model, *given)

    assert 2 == ended.value.code
    assert expected in capsys.readouterr().err


def test_a_folder_is_named_by_where_it_is(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--model .`` has no last part of its own; its generation config may be of other programs."""
    monkeypatch.chdir(with_template(tmp_path / "adder"))
    # Of its generation config, the server takes no more than the end tokens.
    file = pathlib.Path("generation_config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_beams": 4, "frequency_penalty": 0.0}))
    served: list[Any] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: served.append(app))

    call(monkeypatch, "--model", ".", "--port", "0", "--target", "eager", "--max-length", "32")

    (app,) = served
    with TestClient(app) as client:
        assert ["adder"] == [model["id"] for model in client.get("/v1/models").json()["data"]]


@pytest.mark.slow
def test_the_command(tmp_path: pathlib.Path) -> None:
    """It serves a folder, and an interrupt lets a stream come to its end."""
    folder = with_template(tmp_path / "adder")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--target", "eager", "--max-length", "512", "--batch-size", "2", "--port", str(port)]
    with subprocess.Popen([sys.executable, SERVER, "--model", folder, *options]) as program:
        try:
            client = openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0)
            with client:
                end = time.monotonic() + STARTING
                while True:
                    try:
                        assert ["adder"] == [model.id for model in client.models.list()]
                        break
                    except openai.APIConnectionError:
                        assert program.poll() is None
                        assert time.monotonic() < end
                        time.sleep(0.1)
                chunks = client.chat.completions.create(
                    model="adder", messages=USER, stream=True, max_tokens=150, temperature=0, logprobs=True
                )
                first = [next(chunks), next(chunks)]
                program.send_signal(signal.SIGINT)
                (row,) = added_up([*first, *chunks])

                assert (150, "length") == (len(row.logprobs), row.reason) or "stop" == row.reason
            program.wait(PATIENCE)
        finally:
            program.kill()
