"""
Requests in the form of OpenAI's chat completions.

The fields are those of the `API reference
<https://platform.openai.com/docs/api-reference/chat/create>`_ that a decoder can honour, and those that only
label a request. Every other field is refused by name.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Self

import attrs
from attrs import validators

from ...decoding.results.logprobs import Logprobs
from ...decoding.validation import Validator, a_whole_number, as_real, one_real
from .chat_messages import as_messages
from .invalid_request import InvalidRequestError, refuse, rule

_MOST_CHOICES = 128
"""The API's bound of *n*."""

_MOST_TOP = 20
"""The API's bound of *top_logprobs*."""

_MOST_STOPS = 4
"""The API's bound of the texts in *stop*."""

_LONGEST_STOP = 1000
"""Characters of a text in *stop*: the search for it keeps a state for each."""


def _number(text: str, holds: Callable[[float], bool], default: float) -> Any:
    return attrs.field(default=default, converter=as_real, validator=rule(one_real(text, holds)))


def _optional(*rules: Validator) -> Any:
    return attrs.field(default=None, validator=validators.optional(rule(*rules)))


def _whole(*rules: Validator) -> Any:
    return _optional(a_whole_number, *rules)


def _flag() -> Any:
    return attrs.field(default=False, validator=rule(validators.instance_of(bool)))


def _label() -> Any:
    return _optional(validators.instance_of(str))


def _object() -> Any:
    return _optional(validators.instance_of(Mapping))


def _a_text_or_texts(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is not None and not isinstance(value, str | list):
        raise TypeError(f"'{attribute.name}' must be a text or a list of texts: got {value!r:.200}")
    texts = value if isinstance(value, list) else [value]
    if len(texts) > _MOST_STOPS:
        raise ValueError(f"'{attribute.name}' must have at most {_MOST_STOPS} texts: got {len(texts)}")
    longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
    if longest > _LONGEST_STOP:
        raise ValueError(
            f"'{attribute.name}' must have at most {_LONGEST_STOP} characters in each text: got {longest}"
        )


@attrs.frozen(eq=False, kw_only=True)
class ChatCompletionRequest:
    """
    The body of a request for a chat completion.

    A field that is null counts as not given. Defaults are the API's, not the model's generation config:
    temperature 1, no filters, and as many tokens as the decoder has positions.

    >>> request = ChatCompletionRequest.of({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
    >>> request.temperature, request.n, request.stream
    (1.0, 1, False)
    """

    model: str = attrs.field(validator=rule(validators.instance_of(str)))
    messages: list[dict[str, str]] = attrs.field(converter=as_messages)
    temperature: float = _number("0 to 2", lambda value: 0 <= value <= 2, 1.0)
    """0 takes the most probable token, and *top_p* has no effect."""

    top_p: float = _number("> 0, and at most 1", lambda value: 0 < value <= 1, 1.0)
    presence_penalty: float = _number("-2 to 2", lambda value: -2 <= value <= 2, 0.0)
    frequency_penalty: float = _number("-2 to 2", lambda value: -2 <= value <= 2, 0.0)
    logit_bias: Mapping[str, Any] | None = _object()
    """Token ids, as JSON's strings, to -100 to 100."""

    max_completion_tokens: int | None = _whole(validators.ge(1))
    max_tokens: int | None = _whole(validators.ge(1))
    """The older name of :attr:`max_completion_tokens`."""

    n: int = attrs.field(
        default=1, validator=rule(a_whole_number, validators.ge(1), validators.le(_MOST_CHOICES))
    )
    seed: int | None = _whole()
    stop: str | list[str] | None = attrs.field(default=None, validator=rule(_a_text_or_texts))
    """At most 4 texts of at most 1,000 characters each."""

    logprobs: bool = _flag()
    top_logprobs: int | None = _whole(validators.ge(0), validators.le(_MOST_TOP))
    response_format: Mapping[str, Any] | None = _object()
    stream: bool = _flag()
    stream_options: Mapping[str, Any] | None = _object()

    user: str | None = _label()
    """A label, as the next three: checked, and without effect on the answer."""

    safety_identifier: str | None = _label()
    prompt_cache_key: str | None = _label()
    metadata: Mapping[str, Any] | None = _object()
    store: bool = _flag()
    """Must be false: nothing is stored."""

    @classmethod
    def of(cls, body: Any) -> Self:
        """
        The request of a parsed *body*.

        Raises:
            InvalidRequestError: A field is unknown, missing or invalid.
        """
        if not isinstance(body, Mapping):
            raise InvalidRequestError("the body must be a JSON object")
        fields = attrs.fields_dict(cls)
        if unknown := sorted(body.keys() - fields.keys()):
            raise InvalidRequestError(f"'{unknown[0]}' is not supported", unknown[0])
        given = {name: value for name, value in body.items() if value is not None}
        for name, field in fields.items():
            if field.default is attrs.NOTHING and name not in given:
                raise InvalidRequestError(f"'{name}' must be given", name)
        return cls(**given)

    @classmethod
    def of_json(cls, body: bytes) -> Self:
        """
        The request of a *body* of JSON.

        Raises:
            InvalidRequestError: It is no JSON, or :meth:`of` refuses it.
        """
        try:
            parsed = json.loads(body)
        except (RecursionError, ValueError) as error:
            raise InvalidRequestError(f"the body must be JSON: {error}") from error
        return cls.of(parsed)

    def __attrs_post_init__(self) -> None:
        """Check what depends on two fields, and that nothing is to be stored."""
        if self.store:
            refuse("store", "must be false, since nothing is stored", self.store)
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            refuse("max_tokens", "must not be given beside 'max_completion_tokens'", self.max_tokens)
        if self.top_logprobs is not None and not self.logprobs:
            refuse("top_logprobs", "needs 'logprobs': true", self.top_logprobs)
        if self.stream_options is not None:
            if not self.stream:
                refuse("stream_options", "needs 'stream': true", self.stream_options)
            usage = self.stream_options.get("include_usage", False)
            if self.stream_options.keys() - {"include_usage"} or not isinstance(usage, bool):
                refuse("stream_options", "must be {'include_usage': true or false}", self.stream_options)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return self.stream_options is not None and self.stream_options.get("include_usage") is True

    @property
    def requested_logprobs(self) -> Logprobs | None:
        """The log-probabilities to record: those of the decoder's own logits."""
        return Logprobs(top=self.top_logprobs or 0) if self.logprobs else None
