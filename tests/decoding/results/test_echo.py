"""The text behind the prompt's, decoded as one, and the text alone."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from decodekit.decoding import (
    Detokenizer,
    EndOfSequence,
    Event,
    Finish,
    Generator,
    MaxNewTokens,
    StopStrings,
)
from decodekit.decoding.results.row_text import RowText
from decodekit.speculation import PromptLookup, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder

from ...texts_in_scripts import FAMILIES, cases, decoded, tokenizer_of


def position(prefix: Sequence[int]) -> int:
    return len(prefix) - 1


def saying(ids: list[int], vocab_size: int) -> ScriptedDecoder:
    """A decoder whose rows go on as *ids* do, whatever the prompt."""
    table = torch.zeros(len(ids), vocab_size)
    table[range(len(ids) - 1), ids[1:]] = 1.0
    return ScriptedDecoder(table, max_length=len(ids), line=position, batch_size=2)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_begins_with_the_prompt(family: str) -> None:
    """Cut anywhere, even inside a character, both together are the decode of all; the first event has it."""
    for number, case in enumerate(cases(12, families=(family,))):
        ids, tokenizer = case.ids, case.tokenizer
        if len(ids) < 2:
            continue
        size = (1, len(ids) // 2, len(ids) - 1)[number % 3]
        parts: dict[str, Any] = {
            "tokenizer": tokenizer,
            "skip_special_tokens": case.skip_special_tokens,
            "stop": MaxNewTokens(len(ids) - size),
        }
        decoder = saying(ids, len(tokenizer))
        echoed = list(Generator(decoder, echo_prompt=True, **parts).stream(ids[:size]))
        alone = Generator(decoder, **parts)([ids[:size]])
        final = Detokenizer(tokenizer, case.skip_special_tokens).push(ids[:size])

        assert case.text == "".join(event.text or "" for event in echoed)
        assert (echoed[0].text or "").startswith(final)
        assert [decoded(tokenizer, ids[size:], case.skip_special_tokens)] == alone.text


def test_a_prompt_may_end_inside_a_character() -> None:
    """Alone, the new half is what it decodes to, and nothing of the prompt's; behind it, both are whole."""
    tokenizer = tokenizer_of("byte-level")
    ids = [i for letter in "aãģĤb" for i in [tokenizer.convert_tokens_to_ids(letter)]]
    decoder, stop = saying(ids, len(tokenizer)), MaxNewTokens(2)
    echoed = Generator(decoder, tokenizer=tokenizer, stop=stop, echo_prompt=True).stream(ids[:3])

    assert ["\ufffdb"] == Generator(decoder, tokenizer=tokenizer, stop=stop)(ids[:3]).text
    assert ["aあ", "b"] == [event.text for event in echoed]


def test_a_space_behind_the_prompt_is_kept() -> None:
    """Alone, the first token of a text loses it."""
    tokenizer = tokenizer_of("bpe-byte-fallback")
    ids = tokenizer.encode("a fox", add_special_tokens=False)
    size = next(n for n in range(1, len(ids)) if decoded(tokenizer, ids[:n]) == "a")
    decoder, stop = saying(ids, len(tokenizer)), MaxNewTokens(len(ids) - size)

    assert ["fox"] == Generator(decoder, tokenizer=tokenizer, stop=stop)(ids[:size]).text
    assert ["a fox"] == Generator(decoder, tokenizer=tokenizer, stop=stop, echo_prompt=True)(ids[:size]).text


@pytest.mark.parametrize("hide", [True, False])
def test_stop_strings_do_not_look_into_the_prompt(hide: bool) -> None:
    """Neither one that is in it nor one that begins in it; with a draft or without."""
    tokenizer = tokenizer_of("byte-level")
    ids = tokenizer.encode("stop sto", add_special_tokens=False)
    new = tokenizer.encode("p, and stop it", add_special_tokens=False)
    parts: dict[str, Any] = {
        "tokenizer": tokenizer,
        "stop": StopStrings("stop", tokenizer, hide=hide) | MaxNewTokens(len(new)),
        "echo_prompt": True,
    }
    decoder, expected = saying(ids + new, len(tokenizer)), "stop stop, and " + ("" if hide else "stop")
    result = Generator(decoder, **parts)(ids)

    assert [expected] == result.text
    assert [new] != result.ids
    assert [expected] == SpeculativeGenerator(decoder, PromptLookup(), **parts)(ids).text


def test_a_prompt_is_shown_even_if_a_hidden_string_begins_in_it() -> None:
    """The prompt's own text is never held, cut or counted."""
    tokenizer = tokenizer_of("byte-level")
    prompt, new = (tokenizer.encode(text, add_special_tokens=False) for text in ("EN", "D"))
    row = RowText(Detokenizer(tokenizer), (Finish("stop_string", "END", hide=True),), prompt)

    assert row.push(new) == "END"
    assert row.push(new, Finish("max_new_tokens")) == "D"


def test_every_row_has_its_own() -> None:
    """And its first event only."""
    tokenizer = tokenizer_of("byte-level")
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in ("one", "two or three")]
    decoder = saying(tokenizer.encode("x" * 40, add_special_tokens=False), len(tokenizer))
    stop = EndOfSequence(10**6) | MaxNewTokens(3)
    generator = Generator(decoder, tokenizer=tokenizer, stop=stop, echo_prompt=True)
    events: list[Event] = list(generator.stream(prompts))
    texts = ["".join(event.text or "" for event in events if event.row == row) for row in (0, 1)]

    assert ["one", "two or three"] == [text.rstrip("x") for text in texts]
    assert texts == generator(prompts).text
    assert all((event.text or "").strip("x") == "" for event in events[2:])


def test_echo_needs_a_tokenizer() -> None:
    """There is no text without one; and yes is True."""
    decoder = saying([1, 2], 4)

    with pytest.raises(ValueError, match="'tokenizer' must be given where 'echo_prompt' is True: got None"):
        Generator(decoder, echo_prompt=True)
    with pytest.raises(TypeError, match=r"'echo_prompt' must be .*bool"):
        Generator(decoder, echo_prompt="no")  # type: ignore[arg-type]
