"""SmolLM2-135M-Instruct from its GGUF file, as a user would."""

import os
from pathlib import Path

import pytest

from decodekit.__main__ import main
from decodekit.decoding import Generator, MaxNewTokens, Session, Slots
from decodekit.pretrained import ModelUnavailable, fetch_smollm2
from decodekit.speculation import PromptLookup, SpeculativeGenerator

pytestmark = [pytest.mark.real, pytest.mark.slow]

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="module")
def model() -> Path:
    """The file, kept in the user's own cache, which tests otherwise leave alone."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return fetch_smollm2(cache / "decodekit" / "models")
    except ModelUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def generator(model: Path) -> Generator:
    """Eager: nothing here depends on how it is compiled."""
    return Generator.from_pretrained(model, target="eager", widths=(1, 5, 64), max_length=256, progress=False)


def test_a_question_is_answered(generator: Generator) -> None:
    """In its chat template, ended by its own end of sequence, which is not shown."""
    result = generator(QUESTION)

    assert result.text is not None
    assert "Paris" in result.text[0]
    assert "<|im_end|>" not in result.text[0]
    assert ["end_of_sequence"] == result.finish_reasons


def test_a_conversation_feeds_what_is_new(generator: Generator) -> None:
    """In the model's own template: its ids are those of the whole, and each turn is the call with them."""
    session = Session(generator)
    # Otherwise what another test fed would be reused, such as the system's message.
    Slots.of(generator.decoder).forget()
    for text in ("What is the capital of France?", "And of Italy?", "And of Spain?"):
        before = session.ids
        answer = "".join(event.text or "" for event in session.say(text))
        turn, messages = session.turns[-1], session.messages
        whole = generator.tokenizer.apply_chat_template(
            messages[:-1], add_generation_prompt=True, return_dict=False
        )

        assert (whole, 0) == (turn.prompt, turn.rewritten)
        assert max(0, len(before) - 1) == turn.statistics.reused
        assert answer == turn.text
    for turn in session.turns:
        assert generator([turn.prompt]).ids == [turn.ids]


def test_its_tokenizers_output_is_a_prompt(generator: Generator) -> None:
    """The same ids as those of the messages."""
    encoded = generator.tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_dict=True, return_tensors="np"
    )

    assert generator(QUESTION).ids == generator(encoded).ids


def test_drafts_change_no_token(generator: Generator) -> None:
    """In float32, where widths hardly differ."""
    parts = {"stop": MaxNewTokens(32), "tokenizer": generator.tokenizer}
    fast = SpeculativeGenerator(generator.decoder, PromptLookup(), **parts)
    text = "Repeat this list: red, green, blue. red, green, blue. red,"

    assert Generator(generator.decoder, **parts)(text).ids == fast(text).ids


def test_it_is_saved_with_its_tokenizer(generator: Generator, tmp_path: Path) -> None:
    """And loaded with the end of sequence that it had."""
    generator.save(tmp_path / "saved")
    again = Generator.from_pretrained(tmp_path / "saved")

    assert generator(QUESTION).text == again(QUESTION).text


def test_a_kept_decoder_brings_its_tokenizer(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second command reads nothing of the GGUF file, and gives the same text."""
    command = [
        *("generate", "--model", str(model), "--chat", "--prompt", str(QUESTION[0]["content"])),
        *("--cache", str(tmp_path), "--dtype", "bfloat16", "--max-length", "128", "--widths", "1", "64"),
        *("--max-tokens", "16", "--quiet"),
    ]

    assert 0 == main(command)

    first = capsys.readouterr().out
    monkeypatch.setattr("gguf.GGUFReader", None)

    assert 0 == main(command)
    assert first == capsys.readouterr().out
    assert "Paris" in first
