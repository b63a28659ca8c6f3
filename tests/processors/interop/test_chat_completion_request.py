"""Chat completion requests: what is read, and what is refused."""

import json
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from decodekit.decoding import Logprobs
from decodekit.processors.interop.chat_completion_request import ChatCompletionRequest
from decodekit.processors.interop.chat_messages import as_messages
from decodekit.processors.interop.invalid_request import InvalidRequestError

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
FIELDS = [field.name for field in attrs.fields(ChatCompletionRequest)]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=5,
)


class TestFields:
    def test_null_is_not_given(self) -> None:
        """Every field but the two that must be there."""
        request = ChatCompletionRequest.of({**dict.fromkeys(FIELDS), **BODY})
        plain = ChatCompletionRequest.of(BODY)

        assert (plain.temperature, plain.top_p, plain.n, plain.stream) == (1.0, 1.0, 1, False)
        assert [getattr(plain, name) for name in FIELDS] == [getattr(request, name) for name in FIELDS]

    def test_json(self) -> None:
        """As it is sent."""
        request = ChatCompletionRequest.of_json(json.dumps({**BODY, "top_p": 1, "seed": -(10**30)}).encode())

        assert (1.0, -(10**30)) == (request.top_p, request.seed)

    def test_labels_are_taken(self) -> None:
        """Beside the other fields, which they do not change."""
        labels = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}}
        labelled = ChatCompletionRequest.of({**BODY, **labels, "store": False})
        plain = attrs.asdict(ChatCompletionRequest.of(BODY))

        assert {**plain, **labels} == attrs.asdict(labelled)

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({}, None),
            ({"logprobs": False}, None),
            ({"logprobs": True}, Logprobs()),
            ({"logprobs": True, "top_logprobs": 20}, Logprobs(top=20)),
        ],
    )
    def test_logprobs(self, fields: dict[str, Any], expected: Logprobs | None) -> None:
        """Of the decoder's own logits."""
        assert expected == ChatCompletionRequest.of({**BODY, **fields}).requested_logprobs

    @pytest.mark.parametrize(
        ("options", "expected"),
        [({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
    )
    def test_usage(self, options: dict[str, Any], expected: bool) -> None:
        """If it is asked for."""
        request = ChatCompletionRequest.of({**BODY, "stream": True, "stream_options": options})

        assert expected is request.include_usage

    @pytest.mark.parametrize("stop", [{"END": 1}, 3, True])
    def test_a_stop_of_another_type(self, stop: Any) -> None:
        """An object's names are no texts to stop at."""
        with pytest.raises(InvalidRequestError, match="'stop' must be a text or a list of texts"):
            ChatCompletionRequest.of({**BODY, "stop": stop})

    @pytest.mark.parametrize(
        ("stop", "message"),
        [
            (["a"] * 5, "'stop' must have at most 4 texts: got 5"),
            ("x" * 5000, "'stop' must have at most 1000 characters in each text: got 5000"),
            (["a", "x" * 1001], "at most 1000 characters in each text: got 1001"),
        ],
    )
    def test_too_much_to_stop_at(self, stop: Any, message: str) -> None:
        """A search for it would take memory and time for each character."""
        with pytest.raises(InvalidRequestError, match=message) as refused:
            ChatCompletionRequest.of({**BODY, "stop": stop})

        assert "stop" == refused.value.parameter

    @pytest.mark.parametrize("stop", [["a"] * 4, "x" * 1000])
    def test_the_most_to_stop_at(self, stop: Any) -> None:
        """The bounds are included."""
        assert stop == ChatCompletionRequest.of({**BODY, "stop": stop}).stop

    def test_an_unknown_name_that_is_no_text(self) -> None:
        """The refusal can be sent as UTF-8."""
        with pytest.raises(InvalidRequestError) as refused:
            ChatCompletionRequest.of_json(b'{"\\ud800": 1}')

        assert ("'?' is not supported", "?") == (str(refused.value), refused.value.parameter)

    def test_an_inner_name_that_is_no_text(self) -> None:
        """Likewise."""
        with pytest.raises(InvalidRequestError, match="must not have '\\?'"):
            ChatCompletionRequest.of({**BODY, "messages": [{"role": "user", "content": "x", "\ud800": 1}]})

    @pytest.mark.parametrize("missing", ["model", "messages"])
    def test_a_missing_field(self, missing: str) -> None:
        """It is named."""
        with pytest.raises(InvalidRequestError, match=f"'{missing}' must be given") as raised:
            ChatCompletionRequest.of({name: value for name, value in BODY.items() if name != missing})

        assert missing == raised.value.parameter

    @given(st.dictionaries(st.sampled_from(FIELDS), VALUES))
    def test_any_value(self, fields: dict[str, Any]) -> None:
        """It is a request, or is refused in one way, with a parameter."""
        try:
            ChatCompletionRequest.of({**BODY, **fields})
        except InvalidRequestError as error:
            assert error.parameter in FIELDS  # noqa: PT017  # either may happen

    @given(st.binary(max_size=20))
    def test_any_body(self, body: bytes) -> None:
        """None of them is a request."""
        with pytest.raises(InvalidRequestError):
            ChatCompletionRequest.of_json(body)


class TestMessages:
    def test_an_answer_can_be_sent_back(self) -> None:
        """With the fields that the API leaves empty."""
        answer = {
            "role": "assistant",
            "content": "Yes",
            "refusal": None,
            "tool_calls": None,
            "annotations": [],
        }

        assert [{"role": "assistant", "content": "Yes"}] == as_messages([answer])

    def test_parts_of_a_content(self) -> None:
        """They are joined."""
        parts = [{"type": "text", "text": text} for text in ("a", "", "b")]

        assert "ab" == as_messages([{"role": "user", "content": parts}])[0]["content"]

    @pytest.mark.parametrize(
        ("messages", "message"),
        [
            ([], "'messages' must be a list of one or more: got \\[\\]"),
            ("Hi", "'messages' must be a list"),
            (["Hi"], r"'messages\[0\]' must be objects"),
            ([BODY["messages"], {"role": "user"}], r"'messages\[0\]'"),
            (
                [{"role": ["user"], "content": ""}],
                r"'messages\[0\]' must have a 'role' of assistant, developer",
            ),
            ([{"role": "user", "content": []}], r"'messages\[0\].content' must be text"),
            ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "must be text"),
            ([{"role": "user", "content": "", "tool_calls": [1]}], "must not have 'tool_calls'"),
        ],
    )
    def test_refuses(self, messages: Any, message: str) -> None:
        """With the place of what is wrong."""
        with pytest.raises(InvalidRequestError, match=message):
            as_messages(messages)
