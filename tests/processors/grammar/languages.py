"""Test languages: brackets in pure Python, and llguidance over a small tokenizer."""

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from decodekit.processors import Language, json_schema, lark, regex

PIECES = ["(", ")", "()"]
END = 3


@attrs.define(eq=False)
class BracketMatcher:
    """Follows one text of brackets."""

    pairs: int
    states: list[tuple[int, int]] = attrs.field(factory=lambda: [(0, 0)])
    """Before each token and after the last: how many brackets were opened, how many closed."""

    def after(self, token: int) -> tuple[int, int] | None:
        opened, closed = self.states[-1]
        for character in PIECES[token] if 0 <= token < len(PIECES) else "?":
            opened, closed = opened + (character == "("), closed + (character == ")")
            if character == "?" or closed > opened or opened > self.pairs:
                return None
        return opened, closed

    def mask(self) -> Tensor:
        return torch.tensor([self.after(token) is not None for token in range(len(PIECES))])

    def advance(self, ids: Sequence[int]) -> int:
        for taken, token in enumerate(ids):
            state = self.after(token)
            if state is None:
                return taken
            self.states.append(state)
        return len(ids)

    def rewind(self, n: int) -> None:
        del self.states[len(self.states) - n :]

    def finished(self) -> bool:
        opened, closed = self.states[-1]
        return opened == closed > 0


@attrs.frozen(eq=False)
class Brackets:
    """One to *pairs* pairs of brackets, in balance."""

    pairs: int
    eos: tuple[int, ...] = (END,)

    def matcher(self) -> BracketMatcher:
        return BracketMatcher(self.pairs)

    def texts(self) -> set[str]:
        """All of them."""
        texts, longer = set(), {""}
        for _ in range(self.pairs):
            longer = {t[:i] + "()" + t[i:] for t in longer for i in range(len(t) + 1)}
            texts |= longer
        return texts


@functools.cache
def tokenizer(vocab_size: int = 400) -> PreTrainedTokenizerFast:
    """Byte-level, with tokens that reach over the parts of a JSON text."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<end>", "<also>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    examples = [
        '{"name": "Zoë", "age": 31, "tags": ["new", "née"]}',
        '{"name":"Ann","age":7,"tags":[]}',
        "true",
    ]
    backend.train_from_iterator(examples, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def text_of(ids: Sequence[int]) -> str:
    """Strictly: half a character is an error."""
    text: str = tokenizer().decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert "\ufffd" not in text
    return text


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["new", "née", 1]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def is_person(text: str) -> bool:
    person: Any = json.loads(text)
    return (
        set(person) in ({"name", "age"}, {"name", "age", "tags"})
        and isinstance(person["name"], str)
        and len(person["name"]) <= 6
        and isinstance(person["age"], int)
        and 0 <= person["age"] <= 150
        and len(tags := person.get("tags", [])) <= 3
        and all(tag in ("new", "née", 1) for tag in tags)
    )


NUMBER = r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,2})?"

SUM = """
start: term (("+" | "-") term){0,3}
term: /[0-9]{1,3}/ | "(" /[a-z]{1,5}/ ")"
"""


@attrs.frozen
class Case:
    """A language whose texts are short, so that anything drawn from it ends."""

    language: Language
    vocab: int
    """A few more than the tokens, as in models whose vocabulary was rounded up."""

    holds: Callable[[Sequence[int]], bool]
    """Whether ids, the end left out, are a text of it."""


@functools.cache
def cases() -> dict[str, Case]:
    """By name; those after the first over one vocabulary."""
    tokens = tokenizer()
    size = len(tokens) + 3
    sums = re.compile(r"(\d{1,3}|\([a-z]{1,5}\))([+-](\d{1,3}|\([a-z]{1,5}\))){0,3}")
    return {
        "brackets": Case(Brackets(4), 6, lambda ids: "".join(PIECES[i] for i in ids) in Brackets(4).texts()),
        "json": Case(
            json_schema(PERSON, tokens, whitespace=False), size, lambda ids: is_person(text_of(ids))
        ),
        "regex": Case(
            regex(NUMBER, tokens), size, lambda ids: re.fullmatch(NUMBER, text_of(ids)) is not None
        ),
        "lark": Case(lark(SUM, tokens), size, lambda ids: sums.fullmatch(text_of(ids)) is not None),
    }
