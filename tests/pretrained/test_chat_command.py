"""``python -m decodekit chat``: conversations."""

import io
import pathlib
import shutil

import pytest

from decodekit.__main__ import main
from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import compile_decoder
from decodekit.pretrained.chat_command import converse

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
    messages = [{"role": "system", "content": "s"}]

    converse(generator, messages, iter(["a", "b"]), quiet=True)

    assert ["system", "user", "assistant", "user", "assistant"] == [message["role"] for message in messages]
    for turn in (2, 4):
        assert messages[turn]["content"] == (fresh([messages[:turn]]).text or [""])[0]
