"""Chat completions: what a result and its events say is the same."""

import asyncio
import json
import math
import pathlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from decodekit.decoding import Event, Finish, Generation, Statistics, TokenLogprob
from decodekit.streaming.chat_completion import ChatCompletion, error_body, finish_reason

PAIR = pathlib.Path(__file__).parents[2] / "examples" / "pair" / "target"
END = Finish("end_of_sequence", matched=0)


@pytest.fixture(scope="module")
def completion() -> ChatCompletion:
    """One with a byte-level tokenizer."""
    return ChatCompletion(model="m", tokenizer=AutoTokenizer.from_pretrained(PAIR), id="c", created=5)


async def as_they_come(events: Iterable[Event | Exception]) -> AsyncIterator[Event]:
    """The events, and the exception that ends them."""
    for event in events:
        if isinstance(event, Exception):
            raise event
        yield event


def chunks(completion: ChatCompletion, events: Iterable[Event | Exception], **options: Any) -> list[Any]:
    """The data of every message; the last of a stream that does not fail is ``[DONE]``."""

    async def read() -> list[str]:
        source = as_they_come(events)
        given = {"rows": 1, "prompt_tokens": 3, **options}
        return [message async for message in completion.server_sent_events(source, **given)]

    messages = asyncio.run(read())
    assert all(message.startswith("data: ") and message.endswith("\n\n") for message in messages)
    data = [message.removeprefix("data: ").strip() for message in messages]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


class CountsReads(PreTrainedTokenizerFast):
    """Counts how often its added tokens are read, by which changes are told."""

    reads = 0

    @property
    def added_tokens_decoder(self) -> Any:
        """Copied out of the library each time."""
        CountsReads.reads += 1
        return super().added_tokens_decoder


class TestChunks:
    def test_the_tokenizer_is_looked_at_once_a_stream(self) -> None:
        """Not once for each event or each of its top tokens."""
        tokenizer = CountsReads.from_pretrained(PAIR)
        completion = ChatCompletion(model="m", tokenizer=tokenizer)
        top = tuple((token, -2.0) for token in range(20, 40))
        events = [Event(0, (5,), "x", logprobs=(TokenLogprob(5, -1.0, 1, top),)) for _ in range(10)]
        CountsReads.reads = 0
        chunks(completion, events)

        assert 0 < CountsReads.reads <= 3

    def test_a_stream(self, completion: ChatCompletion) -> None:
        """The role, the text as it becomes final, the reason, and the end."""
        events = [Event(0, (5,), "é"), Event(0, (6,), ""), Event(0, (7, 0), "x\n", END)]
        *found, done = chunks(completion, events)
        choices = [chunk["choices"][0] for chunk in found]

        assert "[DONE]" == done
        assert [
            {"role": "assistant", "content": ""},
            {"content": "é"},
            {"content": "x\n"},
            {},
        ] == [choice["delta"] for choice in choices]
        assert [None, None, None, "stop"] == [choice["finish_reason"] for choice in choices]
        assert {("c", "chat.completion.chunk", 5, "m")} == {
            (chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in found
        }
        assert all("usage" not in chunk for chunk in found)

    def test_usage(self, completion: ChatCompletion) -> None:
        """A chunk of its own at the end; null before."""
        events = [Event(1, (5,), "a", END), Event(0, (6, 7), "b", END)]
        *found, last, _ = chunks(completion, events, rows=2, include_usage=True)

        assert {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6} == last["usage"]
        assert [] == last["choices"]
        assert [None] * len(found) == [chunk["usage"] for chunk in found]

    @pytest.mark.parametrize("reason", ["cancelled", "timeout", "no_token_left", "numeric_overflow"])
    def test_an_end_that_is_none(self, completion: ChatCompletion, reason: str) -> None:
        """An error is the last message."""
        *_, last = chunks(completion, [Event(0, (5,), "a", Finish(reason))])

        assert "server_error" == last["error"]["type"]

    def test_a_failure(self, completion: ChatCompletion, caplog: pytest.LogCaptureFixture) -> None:
        """The client is told that there was one, and the log which."""
        *_, last = chunks(completion, [Event(0, (5,), "a"), RuntimeError("a secret")])

        assert {"error": error_body("the generation failed", "server_error")["error"]} == last
        assert "a secret" in caplog.text


class TestWhole:
    def test_the_choices_and_the_usage(self, completion: ChatCompletion) -> None:
        """One for each row."""
        result = Generation(
            [[1, 2]] * 2, [[3, 4], [5]], ["ab", "c"], [Finish("max_new_tokens"), END], Statistics()
        )
        whole = completion.whole(result)

        assert [(0, "ab", "length"), (1, "c", "stop")] == [
            (one["index"], one["message"]["content"], one["finish_reason"]) for one in whole["choices"]
        ]
        assert {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5} == whole["usage"]

    @pytest.mark.parametrize("finish", [None, Finish("cancelled")])
    def test_no_end(self, completion: ChatCompletion, finish: Finish | None) -> None:
        """There is no such completion."""
        with pytest.raises(RuntimeError, match="no proper end"):
            completion.whole(Generation([[1]], [[2]], ["a"], [finish], Statistics()))


class TestLogprobs:
    def test_bytes_and_infinity(self, completion: ChatCompletion) -> None:
        """Half a character has its bytes; what is impossible has the API's number."""
        ids = completion.tokenizer("語").input_ids
        logprobs = [TokenLogprob(token, -0.5, 1, ((token, -0.5), (0, -math.inf))) for token in ids]
        *found, _, _ = chunks(completion, [Event(0, tuple(ids), None, END, tuple(logprobs))])
        content = found[-1]["choices"][0]["logprobs"]["content"]

        assert len(ids) > 1
        assert "語".encode() == b"".join(bytes(one["bytes"]) for one in content)
        assert {-9999.0} == {one["top_logprobs"][1]["logprob"] for one in content}
        assert {"<|endoftext|>"} == {one["top_logprobs"][1]["token"] for one in content}
        json.dumps(content, allow_nan=False)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_of_sequence", "stop"),
        ("stop_string", "stop"),
        ("max_length", "length"),
        ("max_new_tokens", "length"),
    ],
)
def test_reasons(reason: str, expected: str) -> None:
    """Two of the API's."""
    assert expected == finish_reason(Finish(reason))
