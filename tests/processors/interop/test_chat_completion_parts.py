"""The parts of chat completion requests: the same as by hand."""

import pathlib
from typing import Any

import attrs
import pytest
import torch
from transformers import AutoTokenizer

from decodekit.decoding import Batcher, EndOfSequence, Generator, Greedy, MaxNewTokens, Sample, StopStrings
from decodekit.decoding.engine.parts import Parts
from decodekit.decoding.protocols import DecoderShape
from decodekit.decoding.stopping.composition import parts as conditions
from decodekit.processors import (
    Chain,
    FrequencyPenalty,
    Grammar,
    LogitBias,
    PresencePenalty,
    Temperature,
    TopP,
    json_schema,
)
from decodekit.processors.interop.chat_completion_parts import chat_completion_parts
from decodekit.processors.interop.chat_completion_request import ChatCompletionRequest
from decodekit.processors.interop.invalid_request import InvalidRequestError
from decodekit.speculation import BlockVerification, PromptLookup, RejectionSampling, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder

PAIR = pathlib.Path(__file__).parents[3] / "examples" / "pair" / "target"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
MAX_LENGTH = 48


@pytest.fixture(scope="module")
def base() -> Generator:
    """A generator with a text tokenizer and a drafter."""
    tokenizer = AutoTokenizer.from_pretrained(PAIR)
    table = 3 * torch.randn(31, len(tokenizer), generator=torch.Generator().manual_seed(0))
    decoder = ScriptedDecoder(table, batch_size=2, max_length=MAX_LENGTH)
    return Generator(decoder, tokenizer=tokenizer, drafter=PromptLookup(), stop=MaxNewTokens(2))


def parts_of(base: Parts, **fields: Any) -> Parts:
    """The parts of a request."""
    shape = DecoderShape(2, MAX_LENGTH, len(base.tokenizer) - 1, (1,), 1)
    return chat_completion_parts(ChatCompletionRequest.of({**BODY, **fields}), base, shape)


class TestParts:
    @pytest.mark.parametrize(
        ("fields", "by_hand"),
        [
            pytest.param({"seed": 1}, {"sampler": Sample(1)}, id="plain"),
            pytest.param(
                {"seed": 1, "user": "u", "metadata": {"a": "b"}, "store": False},
                {"sampler": Sample(1)},
                id="labels",
            ),
            pytest.param({"temperature": 0}, {}, id="greedy"),
            pytest.param({"temperature": 0, "top_p": 0.2, "seed": 1}, {}, id="greedy-top-p"),
            pytest.param(
                {"seed": 2, "temperature": 0.5, "top_p": 0.7, "max_tokens": 9},
                {"processors": Temperature(0.5) | TopP(0.7), "sampler": Sample(2), "stop": MaxNewTokens(9)},
                id="top-p",
            ),
            pytest.param(
                {
                    "temperature": 0,
                    "frequency_penalty": 1.5,
                    "presence_penalty": -0.5,
                    "logit_bias": {"7": 9},
                },
                {"processors": LogitBias({7: 9.0}) | FrequencyPenalty(1.5) | PresencePenalty(-0.5)},
                id="penalties",
            ),
            pytest.param(
                {"seed": 3, "max_completion_tokens": 10**9},
                {"sampler": Sample(3)},
                id="longer-than-there-is-room",
            ),
        ],
    )
    def test_the_tokens_are_those_of_the_parts_by_hand(
        self, base: Generator, fields: dict[str, Any], by_hand: dict[str, Any]
    ) -> None:
        """The chain, the sampler and the stop; without a limit of its own, to the decoder's end."""
        given: dict[str, Any] = {
            "processors": None,
            "sampler": Greedy(),
            "stop": MaxNewTokens(MAX_LENGTH),
            **by_hand,
        }
        generator: Any = parts_of(base, **fields)

        assert isinstance(generator, Generator)
        found, expected = generator([3, 4]), attrs.evolve(base, **given)([3, 4])

        assert (expected.ids, expected.finishes) == (found.ids, found.finishes)

    def test_what_is_kept(self, base: Generator) -> None:
        """The tokenizer, the drafter, and the ends of sequence, which come first."""
        parts = parts_of(base, stop=["a", "b"], max_tokens=4)

        assert parts.tokenizer is base.tokenizer
        assert parts.drafter is base.drafter
        ends, strings, limit = conditions(parts.stop)
        assert isinstance(ends, EndOfSequence)
        assert (0,) == ends.ids
        assert isinstance(strings, StopStrings)
        assert isinstance(limit, MaxNewTokens)

    def test_stop_strings_read_the_text_of_the_base(self, base: Generator) -> None:
        """With special tokens in it where the base shows them."""
        shows = attrs.evolve(base, skip_special_tokens=False)
        _, strings, _ = conditions(parts_of(shows, stop="a", max_tokens=4).stop)

        assert isinstance(strings, StopStrings)
        assert strings.skip_special_tokens is False

    def test_the_text_is_the_answer_alone(self, base: Generator) -> None:
        """Also where the base's texts begin with the prompt."""
        echoes = attrs.evolve(base, echo_prompt=True)
        generator, plain = (parts_of(one, temperature=0, max_tokens=4) for one in (echoes, base))

        assert isinstance(generator, Generator)
        assert isinstance(plain, Generator)
        assert generator([3, 4]).text == plain([3, 4]).text

    @pytest.mark.parametrize("verification", [RejectionSampling(), BlockVerification()])
    def test_a_greedy_text_compares_no_distributions(self, base: Generator, verification: Any) -> None:
        """So a request with temperature 0 is served, whatever others are verified by."""
        compares = SpeculativeGenerator(
            base.decoder,
            drafter=PromptLookup(),
            verification=verification,
            sampler=Sample(),
            tokenizer=base.tokenizer,
        )
        greedy = parts_of(compares.parts, temperature=0, max_tokens=9)
        handle = Batcher(base.decoder).submit(greedy, [3, 4])

        assert parts_of(base, temperature=0, max_tokens=9).stop.finishes == greedy.stop.finishes
        assert attrs.evolve(base, stop=MaxNewTokens(9))([3, 4]).ids == handle.result().ids
        assert verification is parts_of(compares.parts, seed=1).verification

    def test_no_end_of_sequence(self, base: Generator) -> None:
        """A generator without one has none."""
        parts = parts_of(attrs.evolve(base, end_of_sequence=None))

        assert isinstance(parts.stop, MaxNewTokens)

    def test_a_schema_constrains_first(self, base: Generator) -> None:
        """As the grammar by hand, which ends with the generator's own ends."""
        schema = {"type": "array", "items": {"enum": ["a"]}, "minItems": 1, "maxItems": 3}
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        generator: Any = parts_of(base, response_format=wanted, seed=4, temperature=0.9)
        grammar = Grammar(json_schema(schema, base.tokenizer, eos=0, whitespace=False))
        by_hand = attrs.evolve(
            base, processors=grammar | Temperature(0.9), sampler=Sample(4), stop=MaxNewTokens(MAX_LENGTH)
        )

        assert by_hand([5]).ids == generator([5]).ids
        assert generator([5]).text[0] in ('["a"]', '["a","a"]', '["a","a","a"]')

    @pytest.mark.parametrize("text", [None, {"type": "text"}])
    def test_no_schema(self, base: Generator, text: Any) -> None:
        """Any text has no grammar."""
        parts = parts_of(base, response_format=text)

        assert isinstance(parts.processors, Chain)
        assert () == parts.processors.processors

    @pytest.mark.parametrize(
        ("fields", "parameter"),
        [
            ({"stop": ["", "a"]}, "stop"),
            ({"stop": 0}, "stop"),
            # The tokenizer has it, the decoder does not.
            ({"logit_bias": {"4095": 1}}, "logit_bias"),
            ({"logit_bias": {"-1": 1}}, "logit_bias"),
            ({"logit_bias": {"1": None}}, "logit_bias"),
            ({"logit_bias": {"1": float("nan")}}, "logit_bias"),
            ({"response_format": {}}, "response_format"),
            ({"response_format": {"type": "json_object", "more": 1}}, "response_format"),
            (
                {
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {
                            "schema": {
                                "type": "string",
                                "not": {"const": "a"},
                                "x-guidance": {"lenient": True},
                            }
                        },
                    }
                },
                "response_format",
            ),
            ({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}, "response_format"),
            (
                {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "other": 1}}},
                "response_format",
            ),
            (
                {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "what"}}}},
                "response_format",
            ),
        ],
    )
    def test_refuses(self, base: Generator, fields: dict[str, Any], parameter: str) -> None:
        """What the tokenizer or the engine does not take."""
        with pytest.raises(InvalidRequestError, match=parameter) as raised:
            parts_of(base, **fields)

        assert parameter == raised.value.parameter
