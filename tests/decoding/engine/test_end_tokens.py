"""The end of sequence joins a generator's stop condition."""

from typing import Any

import attrs
import pytest
import torch

from decodekit.decoding import EndOfSequence, Generator, MaxNewTokens
from decodekit.decoding.stopping.not_before import NotBefore
from decodekit.testing import ScriptedDecoder, last_token

COUNT_UP = torch.eye(8).roll(1, dims=1)


class Letters:
    """A tokenizer whose sequences end with token 4."""

    eos_token_id = 4

    def decode(self, ids: list[int], **options: Any) -> str:
        """One letter a token."""
        return "".join(chr(97 + token) for token in ids)

    def convert_ids_to_tokens(self, token: int) -> str:
        """Its letter."""
        return chr(97 + token)


def counted(**parts: Any) -> list[int]:
    """The tokens from 1 on."""
    parts = {"tokenizer": Letters(), "stop": MaxNewTokens(6), **parts}
    return Generator(ScriptedDecoder(COUNT_UP, line=last_token), **parts)([0]).ids[0]


def test_that_of_the_tokenizer_joins() -> None:
    """Whatever stop is given, before or after it."""
    assert [1, 2, 3, 4] == counted()
    assert [1, 2] == counted(stop=MaxNewTokens(2))


def test_other_ids_or_none() -> None:
    """As given, with or without a tokenizer."""
    assert [1, 2, 3, 4, 5, 6] == counted(end_of_sequence=None)
    assert [1, 2, 3] == counted(end_of_sequence=3)
    assert [1, 2] == counted(end_of_sequence=[5, 2], tokenizer=None)
    assert [1, 2, 3, 4, 5, 6] == counted(tokenizer=None)


def test_a_stop_with_its_own_is_left_alone() -> None:
    """Also where another condition holds it back."""
    assert [1, 2, 3, 4, 5] == counted(stop=EndOfSequence(5) | MaxNewTokens(6))
    assert [1, 2, 3, 4, 5, 6] == counted(stop=NotBefore(5, EndOfSequence(4)) | MaxNewTokens(6))


def test_what_was_given_can_be_changed() -> None:
    """The stop that was given is kept as it was."""
    generator = Generator(
        ScriptedDecoder(COUNT_UP, line=last_token), stop=MaxNewTokens(6), tokenizer=Letters()
    )

    assert isinstance(generator.stop, MaxNewTokens)
    assert 6 == len(attrs.evolve(generator, end_of_sequence=None)([0]).ids[0])


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("eos", ValueError, "'end_of_sequence' must be 'auto', None, an id or several: got 'eos'"),
        (-1, ValueError, "'end_of_sequence' must be >= 0"),
        ([], TypeError, "'end_of_sequence' must be a token id or several"),
        (2.5, TypeError, "'end_of_sequence' must be a token id or several"),
    ],
)
def test_refuses(value: Any, error: type[Exception], message: str) -> None:
    """What is no id."""
    with pytest.raises(error, match=message):
        counted(end_of_sequence=value)
