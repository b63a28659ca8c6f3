"""
Results and events in the form of OpenAI's chat completions.

See the `API reference <https://platform.openai.com/docs/api-reference/chat/object>`_. A stream is
server-sent events without names, each with a chunk as JSON; the last one is ``[DONE]``. If the
generation fails, an event with an ``error`` ends it, which clients raise.
"""

import functools
import json
import logging
import math
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from typing import Any

import attrs

from ..decoding.protocols import Finish
from ..decoding.results.events import Event
from ..decoding.results.generation import Generation
from ..decoding.results.logprobs import TokenLogprob
from ..decoding.text.token_bytes import token_speller
from .sse import generic_message

_LOG = logging.getLogger(__name__)

_LENGTH = {"max_length", "max_new_tokens"}
_FAILED = {"cancelled", "no_token_left", "numeric_overflow", "timeout"}

_IMPOSSIBLE = -9999.0
"""The API's log-probability of a token that is very unlikely; JSON has no infinity."""


def error_body(
    message: str, kind: str, parameter: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """
    The body of an error.

    >>> error_body("'top_k' is not supported", "invalid_request_error", "top_k")["error"]["param"]
    'top_k'
    """
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}


@attrs.frozen(eq=False, kw_only=True)
class ChatCompletion:
    """One chat completion: the rows of a generation are its choices."""

    model: str
    """The name that the client knows."""

    tokenizer: Any
    """Spells the tokens of log-probabilities; must not change after the first of them."""

    id: str = attrs.field(factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = attrs.field(factory=lambda: int(time.time()))
    """Seconds since 1970."""

    def whole(self, result: Generation) -> dict[str, Any]:
        """
        The completion of *result*, which has text.

        Raises:
            RuntimeError: A row has no proper end: it was cancelled, its time was over, no token was left, or
                the logits overflowed.
        """
        choices = [self._choice(result, row) for row in range(len(result.ids))]
        usage = _usage(len(result.prompts[0]), sum(map(len, result.ids)))
        return {**self._head("chat.completion"), "choices": choices, "usage": usage}

    async def server_sent_events(
        self, events: AsyncIterable[Event], rows: int, prompt_tokens: int, include_usage: bool = False
    ) -> AsyncGenerator[str, None]:
        """
        The chunks of *events*, as messages of a ``text/event-stream``.

        Args:
            events: With text; the caller closes them.

            rows: The number of choices.

            prompt_tokens: The length of the prompt.

            include_usage: Whether the last chunk has the number of tokens.
        """
        new_tokens = 0
        more = {"usage": None} if include_usage else {}
        try:
            for row in range(rows):
                yield self._message([_part(row, {"role": "assistant", "content": ""})], more)
            async for event in events:
                new_tokens += len(event.ids)
                if event.text or event.logprobs:
                    logprobs = self._logprobs(event.logprobs)
                    yield self._message([_part(event.row, {"content": event.text}, logprobs)], more)
                if event.finish is not None:
                    yield self._message([_part(event.row, {}, finish=finish_reason(event.finish))], more)
        except Exception as error:
            _LOG.error("a chat completion failed while it was sent", exc_info=error)
            yield _message(error_body(generic_message(error), "server_error"))
            return
        if include_usage:
            yield self._message([], {"usage": _usage(prompt_tokens, new_tokens)})
        yield "data: [DONE]\n\n"

    def _choice(self, result: Generation, row: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": None if result.text is None else result.text[row]}
        logprobs = None if result.logprobs is None else self._logprobs(result.logprobs[row])
        reason = finish_reason(result.finishes[row])
        return {"index": row, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _message(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> str:
        return _message({**self._head("chat.completion.chunk"), "choices": choices, **more})

    @functools.cached_property
    def _spell(self) -> Callable[[int], bytes]:
        # Once for all: whether a tokenizer has changed is told by all of its added tokens.
        return token_speller(self.tokenizer)

    def _logprobs(self, logprobs: Iterable[TokenLogprob] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        spell = self._spell
        content = [
            {
                **_token(spell(one.id), one.logprob),
                "top_logprobs": [_token(spell(token), logprob) for token, logprob in one.top],
            }
            for one in logprobs
        ]
        return {"content": content, "refusal": None}


def finish_reason(finish: Finish | None) -> str:
    """
    The API's name of a *finish*: ``"stop"`` or ``"length"``.

    Raises:
        RuntimeError: It is no proper end.

    >>> finish_reason(Finish("end_of_sequence")), finish_reason(Finish("max_new_tokens"))
    ('stop', 'length')
    """
    if finish is None or finish.reason in _FAILED:
        raise RuntimeError(f"the generation has no proper end: got {finish!r}")
    return "length" if finish.reason in _LENGTH else "stop"


def _part(
    row: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
) -> dict[str, Any]:
    return {"index": row, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _token(spelled: bytes, logprob: float) -> dict[str, Any]:
    finite = logprob if math.isfinite(logprob) else _IMPOSSIBLE
    return {"token": spelled.decode(errors="replace"), "logprob": finite, "bytes": list(spelled)}


def _usage(prompt: int, new: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def _message(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
