"""Infilling prompts (fill in the middle) from a tokenizer's own special tokens."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import attrs

from ..text.token_bytes import special_ids, token_speller


def _as_names(names: Any) -> Any:
    return tuple(names) if isinstance(names, list | tuple) else names


def _names(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(name, str) and name for name in value):
        raise TypeError(f"'{attribute.name}' must be names of tokens: got {value!r}")


def _a_name(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise TypeError(f"'{attribute.name}' must be the name of a token: got {value!r}")


@attrs.frozen
class InfillingTemplate:
    """
    The special tokens around the two parts of a text, by name.

    With :attr:`middle`: beginning of sequence, *prefix*, the text before, *suffix*, the text after,
    *middle* (prefix, suffix, middle). Without: beginning of sequence, *suffix*, the text after, *prefix*, the
    text before (suffix, prefix).

    Bavarian et al., 2022, `Efficient Training of Language Models to Fill in the Middle
    <https://arxiv.org/abs/2207.14255>`_, section 3.
    """

    prefix: str = attrs.field(validator=_a_name)
    """The token before the text before the gap."""

    suffix: str = attrs.field(validator=_a_name)
    """The token before the text after the gap."""

    middle: str = attrs.field(default="", validator=attrs.validators.instance_of(str))
    """The token before the generated text; empty if it follows the text before the gap."""

    ends: tuple[str, ...] = attrs.field(default=(), converter=_as_names, validator=_names)
    """Further tokens that end the generated text, those that the tokenizer has."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that a tokenizer must have."""
        return tuple(filter(None, (self.prefix, self.suffix, self.middle)))


_END_OF_DOCUMENT = "<|endoftext|>"
"""Ends a document of the base model; the end of sequence of an instruct model's tokenizer is another."""

TEMPLATES = (
    # StarCoder, StarCoder2, Granite Code, Stable Code
    InfillingTemplate(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ("<fim_pad>", "<file_sep>", "<repo_name>", "<filename>", _END_OF_DOCUMENT),
    ),
    # SantaCoder
    InfillingTemplate("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<fim-pad>", _END_OF_DOCUMENT)),
    # Qwen2.5-Coder, CodeGemma
    InfillingTemplate(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|file_separator|>", _END_OF_DOCUMENT),
    ),
    # CodeLlama
    InfillingTemplate("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    # DeepSeek-Coder
    InfillingTemplate(  # their letters
        "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ("<｜end▁of▁sentence｜>",)
    ),
    # Codestral
    InfillingTemplate("[PREFIX]", "[SUFFIX]"),
)
"""Templates of published models, in the order in which a tokenizer's is looked for."""


@attrs.frozen
class InfillingPrompt:
    """A prompt whose continuation is the text of the gap."""

    ids: list[int]
    """The prompt, as a generator takes it."""

    ends: tuple[int, ...]
    """Tokens that end the continuation, ascending: the template's, and the end of sequence."""

    template: InfillingTemplate
    """The template that was used."""


def infilling_prompt(
    tokenizer: Any, prefix: str, suffix: str, template: InfillingTemplate | None = None
) -> InfillingPrompt:
    """
    The prompt for the text between *prefix* and *suffix*, for a model that was trained to infill.

    ``Generator(decoder, stop=EndOfSequence(prompt.ends, hide=True), tokenizer=known)(prompt.ids).text[0]``

    The names of special tokens and of the template's within *prefix* and *suffix* are text. A tokenizer that
    begins every text with a special token begins the prompt with it; one that puts a space before every text
    does so before *prefix* alone.

    Args:
        tokenizer: A Hugging Face tokenizer, that of the model.

        prefix: The text before the gap; may be empty.

        suffix: The text after it; may be empty.

        template: Another template; None: the first of :data:`TEMPLATES` whose tokens the tokenizer has.

    Raises:
        TypeError: *prefix* or *suffix* is no string.

        ValueError: The tokenizer does not have the template's tokens, or those of any template.
    """
    for name, text in (("prefix", prefix), ("suffix", suffix)):
        if not isinstance(text, str):
            raise TypeError(f"'{name}' must be a string: got {text!r}")
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    found = _template(tokenizer, vocabulary, TEMPLATES if template is None else (template,))

    def encode(text: str) -> list[int]:
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return list(ids)

    def inside(text: str) -> list[int]:
        return _inside(tokenizer, text, encode)

    # Tokens that are not special, as some tokenizers have those of templates, would be found in a text.
    special = special_ids(tokenizer)
    known = [name for name in (*found.tokens, *found.ends) if name in vocabulary]
    names = [name for name in known if vocabulary[name] not in special]
    (begin, *others), pieces = _cut(prefix, names), _cut(suffix, names)
    before = [*(encode(begin) if begin else []), *(token for piece in others for token in inside(piece))]
    after = [token for piece in pieces for token in inside(piece)]
    first, second = vocabulary[found.prefix], vocabulary[found.suffix]
    ids = _leading_specials(tokenizer, encode)
    if found.middle:
        ids += [first, *before, second, *after, vocabulary[found.middle]]
    else:
        ids += [second, *after, first, *before]
    ends = {vocabulary[name] for name in known}
    if tokenizer.eos_token_id is not None:
        ends.add(tokenizer.eos_token_id)
    return InfillingPrompt(ids, tuple(sorted(ends)), found)


def _template(
    tokenizer: Any, vocabulary: dict[str, int], templates: tuple[InfillingTemplate, ...]
) -> InfillingTemplate:
    for template in templates:
        if all(name in vocabulary for name in template.tokens):
            return template
    wanted = "; ".join(" ".join(template.tokens) for template in templates)
    raise ValueError(
        "'tokenizer' must have the tokens of an infilling template, one of these groups: "
        f"{wanted}: got {type(tokenizer).__name__} of {len(vocabulary)} tokens without"
    )


def _cut(text: str, names: Sequence[str]) -> list[str]:
    """The pieces of *text*, in which each of *names* is cut after its first character."""
    found = {match.start() + 1 for name in names for match in re.finditer(f"(?={re.escape(name)})", text)}
    places = [0, *sorted(found), len(text)]
    return [text[begin:end] for begin, end in pairwise(places)]


def _leading_specials(tokenizer: Any, encode: Callable[[str], list[int]]) -> list[int]:
    """The special tokens that *tokenizer* puts before every text."""
    whole, bare = list(tokenizer("a")["input_ids"]), encode("a")
    starts = (at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
    return whole[: next(starts, 0)]


def _inside(tokenizer: Any, text: str, encode: Callable[[str], list[int]]) -> list[int]:
    """*text* as it is tokenized within a text, without a space that the tokenizer puts before a text."""
    if not text:
        return []
    if not token_speller(tokenizer)(encode("a")[0]).startswith(b" "):
        return encode(text)
    for before in ("\n", ".", "a"):
        ids, both = encode(before), encode(before + text)
        # Unless a token spans both.
        if both[: len(ids)] == ids:
            return both[len(ids) :]
    return encode(text)
