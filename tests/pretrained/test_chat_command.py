"""``python -m decodekit chat``: conversations."""

import io
import pathlib
import re
import shutil

import pytest

from decodekit.__main__ import main
from decodekit.decoding import Event, Generator, MaxNewTokens, Session
from decodekit.neuron_backend import compile_decoder
from decodekit.pretrained import kept_decoders
from decodekit.pretrained.chat_command import converse
from decodekit.streaming import TextStreamer

from .test_generate_command import DRAFT, TEMPLATE


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    """The bundled draft model, with a chat template."""
    folder = pathlib.Path(shutil.copytree(DRAFT, tmp_path / "model"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_turns(
    model: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line is answered; empty ones are not, and nothing after the end is."""
    monkeypatch.setattr("sys.stdin", io.StringIO("import os\n\n  \nclass A\n/exit\nnever\n"))

    status = main(
        ["chat", "--model", str(model), "--max-tokens", "8", "--target", "eager", "--max-length", "256"]
    )
    _, err = capsys.readouterr()

    assert 0 == status
    assert 2 == err.count("tokens/s")


def test_answers_are_those_of_the_whole_conversation(model: pathlib.Path) -> None:
    """Each as if it were asked alone, after what was said before."""
    options = {"target": "eager", "dtype": "float64", "max_length": 256, "widths": (1, 32)}
    decoders = [compile_decoder(model, **options) for _ in range(2)]
    generator, fresh = (Generator(each, stop=MaxNewTokens(8), tokenizer=each.tokenizer) for each in decoders)
    session = Session(generator, system="s")

    converse(session, iter(["a", "b"]), quiet=True)

    roles = [message["role"] for message in session.messages]
    assert ["system", "user", "assistant", "user", "assistant"] == roles
    for turn in session.turns:
        assert turn.ids == fresh([turn.prompt]).ids[0]


def test_a_system_message_that_fills_the_cache(
    model: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused by its flag before anything is compiled."""
    monkeypatch.setattr(kept_decoders, "compile_decoder", None)
    limit = ["--target", "eager", "--max-length", "32"]
    status = main(["chat", "--model", str(model), *limit, "--system", "x = 1\n" * 40])

    assert 1 == status
    assert "--system must leave room in 32 tokens (--max-length): got" in capsys.readouterr().err


def test_commands(model: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A turn is taken back or replaced; what cannot be is said, and the conversation goes on."""
    decoder = compile_decoder(model, target="eager", max_length=48, widths=(1, 32))
    session = Session(Generator(decoder, stop=MaxNewTokens(4), tokenizer=decoder.tokenizer))

    lines = ["/undo", "/edit x", "a", "b", "/undo", "/edit c", "long " * 40, "/help", "/edit", "//d"]
    converse(session, iter(lines), quiet=True)

    assert ["c", "/d"] == [turn.messages[0]["content"] for turn in session.turns]
    _, err = capsys.readouterr()
    assert 2 == err.count("nothing was said yet")
    assert 1 == err.count("the last turn is taken back")
    assert 2 == err.count("/exit ends the conversation")
    assert 1 == err.count("at most 48 tokens")


def test_an_interrupt_ends_the_answer_alone(model: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of it is the answer."""
    decoder = compile_decoder(model, target="eager", max_length=48, widths=(1, 32))
    session = Session(Generator(decoder, stop=MaxNewTokens(4), tokenizer=decoder.tokenizer))
    seen: list[Event] = []

    def put(streamer: TextStreamer, event: Event) -> None:
        seen.append(event)
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(TextStreamer, "put_event", put)
    converse(session, iter(["a", "b"]))

    assert [2, 4] == [len(turn.ids) for turn in session.turns]


def test_standard_input_may_be_closed(
    model: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before anything is compiled."""
    monkeypatch.setattr("sys.stdin", None)
    for arguments in (["chat"], ["generate", "--prompt", "-"]):
        assert 1 == main([*arguments, "--model", str(model)])
        assert "a closed one" in capsys.readouterr().err


def test_what_the_template_refuses_ends_nothing(
    model: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said."""
    refusing = "{% if 'no' in messages[-1].content %}{{ raise_exception('never no') }}{% endif %}" + TEMPLATE
    (model / "chat_template.jinja").write_text(refusing)
    decoder = compile_decoder(model, target="eager", max_length=48, widths=(1, 32))
    session = Session(Generator(decoder, stop=MaxNewTokens(4), tokenizer=decoder.tokenizer))

    converse(session, iter(["a", "no", "b"]), quiet=True)

    assert ["a", "b"] == [turn.messages[0]["content"] for turn in session.turns]
    assert "the tokenizer's chat template refuses the messages: never no" in capsys.readouterr().err


def test_a_byte_that_is_no_text_ends_nothing(
    model: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line is answered as it was read. A flag without effect is reported."""
    lines = io.TextIOWrapper(io.BytesIO(b"a\n\xff\nb\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", lines)
    status = main([
        "chat", "--model", str(model), "--max-tokens", "4", "--target", "eager", "--max-length", "128",
        "--top-k", "3",
    ])  # fmt: skip
    err = capsys.readouterr().err

    assert (0, 3) == (status, err.count("tokens/s"))
    assert 1 == err.count("--top-k, --top-p and --min-p change nothing at --temp 0")


def test_a_model_without_a_template_is_refused_before_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its tokenizer."""
    monkeypatch.setattr(kept_decoders, "compile_decoder", None)

    assert 1 == main(["chat", "--model", str(DRAFT), "--target", "eager"])
    assert "a chat must have a tokenizer with a chat template" in capsys.readouterr().err


def test_a_system_message_that_the_template_refuses_is_said_before_anything_is_compiled(
    model: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some templates have no such role."""
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
    (model / "chat_template.jinja").write_text(refusing)
    monkeypatch.setattr(kept_decoders, "compile_decoder", None)

    assert 1 == main(["chat", "--model", str(model), "--target", "eager", "--system", "s"])
    assert "the tokenizer's chat template refuses the messages: no system" in capsys.readouterr().err


def test_the_seed_is_that_of_the_conversation(
    model: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drawn once, told with each turn, and given it repeats them."""
    command = ["chat", "--model", str(model), "--max-tokens", "4", "--target", "eager", "--max-length", "128"]
    command += ["--temp", "1"]

    def run(*more: str) -> tuple[str, list[str]]:
        monkeypatch.setattr("sys.stdin", io.StringIO("a\nb\n"))
        assert 0 == main([*command, *more])
        out, err = capsys.readouterr()
        return out, re.findall(r"seed (\d+)", err)

    out, [seed, again] = run()

    assert seed == again
    assert (out, [seed, seed]) == run("--seed", seed)
