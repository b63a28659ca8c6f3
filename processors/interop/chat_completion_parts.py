"""The parts of a generation that a chat completion request asks for."""

from collections.abc import Mapping
from typing import Any

import attrs

from ...decoding.engine.exact_match_verification import ExactMatch
from ...decoding.engine.parts import Parts
from ...decoding.optional_protocols import compares_scores
from ...decoding.protocols import DecoderShape, Processor, StopCondition
from ...decoding.sampling.greedy import Greedy
from ...decoding.sampling.sample import Sample
from ...decoding.stopping.composition import parts as parts_of_stop
from ...decoding.stopping.end_of_sequence import EndOfSequence
from ...decoding.stopping.max_new_tokens import MaxNewTokens
from ...decoding.stopping.stop_strings import StopStrings
from ...decoding.validation import as_real
from ..chain import Chain
from ..grammar.grammar import Grammar
from ..grammar.llguidance import json_schema
from ..penalties.frequency_penalty import FrequencyPenalty
from ..penalties.logit_bias import LogitBias
from ..penalties.presence_penalty import PresencePenalty
from ..scaling.temperature import Temperature
from ..truncation.top_p import TopP
from .chat_completion_request import ChatCompletionRequest
from .invalid_request import checked, refuse

_MOST_BIAS = 100.0
"""The API's bound of each bias."""


def chat_completion_parts(request: ChatCompletionRequest, base: Parts, shape: DecoderShape) -> Parts:
    """
    The parts of a chat completion.

    The chain is grammar, bias, frequency and presence penalty (of generated tokens), temperature, top-p.

    Args:
        request: What the client asks for.

        base: A generator, of which the tokenizer, the end-of-sequence tokens, the drafter and whether the
            text shows special tokens are kept; the verification too, unless it compares distributions and
            the temperature is 0. The text never begins with the prompt.

        shape: The decoder's, whose positions bound a completion without a limit of its own.

    Raises:
        InvalidRequestError: A field does not suit the tokenizer or the decoder, or the grammar is refused.
    """
    ends = _end_tokens(base.stop_condition)
    chain, stop = (
        Chain(_stages(request, base.tokenizer, ends, shape.vocab_size)),
        _stop(request, base, ends, shape.max_length),
    )
    sampler = Sample(request.seed) if request.temperature else Greedy()
    # Nothing is random in a greedy text, so there are no distributions to compare.
    exact = not request.temperature and compares_scores(base.verification)
    verification = ExactMatch() if exact else base.verification
    return attrs.evolve(
        base, processors=chain, sampler=sampler, stop=stop, verification=verification, echo_prompt=False
    )


def _stages(
    request: ChatCompletionRequest, tokenizer: Any, ends: tuple[int, ...], vocab_size: int
) -> list[Processor]:
    stages: list[Processor] = []
    if (schema := _schema(request.response_format)) is not None:
        language = checked(
            "response_format", lambda: json_schema(schema, tokenizer, eos=ends or None, whitespace=False)
        )
        stages.append(Grammar(language))
    if request.logit_bias:
        stages.append(LogitBias(_biases(request.logit_bias, vocab_size)))
    if request.frequency_penalty:
        stages.append(FrequencyPenalty(request.frequency_penalty))
    if request.presence_penalty:
        stages.append(PresencePenalty(request.presence_penalty))
    if request.temperature not in (0.0, 1.0):
        stages.append(checked("temperature", lambda: Temperature(request.temperature)))
    if request.temperature and request.top_p < 1:
        stages.append(TopP(request.top_p))
    return stages


def _stop(
    request: ChatCompletionRequest, base: Parts, ends: tuple[int, ...], max_length: int
) -> StopCondition:
    limit = request.max_completion_tokens or request.max_tokens or max_length
    stop: StopCondition = MaxNewTokens(min(limit, max_length))
    strings = request.stop
    if strings is not None and strings != []:
        # A match is searched for in the text that the client gets.
        skip = base.skip_special_tokens
        stop = checked("stop", lambda: StopStrings(strings, base.tokenizer, skip_special_tokens=skip)) | stop
    return EndOfSequence(ends) | stop if ends else stop


def _end_tokens(stop: StopCondition) -> tuple[int, ...]:
    found = (part.ids for part in parts_of_stop(stop) if isinstance(part, EndOfSequence))
    return tuple(dict.fromkeys(token for ids in found for token in ids))


def _schema(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The JSON schema of the text; None for any text."""
    wanted = {"type": "text"} if response_format is None else response_format
    kind, given = wanted.get("type"), wanted.get("json_schema")
    if kind == "json_schema" and wanted.keys() == {"type", "json_schema"} and isinstance(given, Mapping):
        if unknown := sorted(given.keys() - {"name", "description", "schema", "strict"}):
            refuse("response_format", f"must not have '{unknown[0]}'", given)
        schema = given.get("schema")
        if not isinstance(schema, Mapping):
            refuse("response_format", "must have a 'schema', an object", given)
        if "x-guidance" in schema:
            # The engine's options, which may switch off that the schema is enforced.
            refuse("response_format", "must not have 'x-guidance' in its schema", given)
        return schema
    if wanted.keys() != {"type"} or kind not in ("text", "json_object"):
        refuse("response_format", "must have the type 'text', 'json_object' or 'json_schema'", wanted)
    return {"type": "object"} if kind == "json_object" else None


def _biases(biases: Mapping[str, Any], vocab: int) -> dict[int, float]:
    for token, bias in biases.items():
        if not token.isdecimal() or int(token) >= vocab:
            refuse("logit_bias", f"must have token ids below {vocab} as names", token)
        if not isinstance(as_real(bias), float) or not -_MOST_BIAS <= bias <= _MOST_BIAS:
            refuse("logit_bias", "must have numbers from -100 to 100", bias)
    return {int(token): float(bias) for token, bias in biases.items()}
