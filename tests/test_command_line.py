"""``python -m decodekit``."""

import pathlib
import subprocess
import sys

import pytest

from decodekit.__main__ import main

PAIR = pathlib.Path(__file__).parents[1] / "examples" / "pair"
EAGER = ["--target", "eager", "--max-length", "128", "--max-tokens", "24"]


def run(*arguments: str) -> int:
    """The exit status of ``decodekit generate``."""
    return main(["generate", *arguments])


class TestGenerate:
    @pytest.mark.parametrize("temperature", ["0", "0.7"])
    def test_streams_and_compares(self, temperature: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Text on standard output; the report, with τ and the comparison, on the other."""
        status = run(
            "--model", str(PAIR / "target"), "--draft-model", str(PAIR / "draft"), "--prompt", "import os\n",
            "--temp", temperature, "--dtype", "float64", "--compare", *EAGER,
        )  # fmt: skip
        out, err = capsys.readouterr()

        assert 0 == status
        assert out.startswith("import os\n")
        assert len(out) > 30
        assert "24 tokens in" in err
        assert "first token after" in err
        assert "mean accepted length τ = " in err
        assert "the same tokens" in err

    def test_prints_the_same_at_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Without streaming, and without a draft, the text is the same."""
        common = ["--model", str(PAIR / "target"), "--prompt", "def f(", "--dtype", "float64", *EAGER]
        texts = []
        for more in ([], ["--no-stream"], ["--draft-model", str(PAIR / "draft")]):
            assert 0 == run(*common, *more)
            texts.append(capsys.readouterr().out)

        assert 1 == len(set(texts))

    def test_ends_before_a_string(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A stop string is left out of the text."""
        run("--model", str(PAIR / "target"), "--prompt", "import ", "--stop", "\n", "--no-stream", *EAGER)
        out, err = capsys.readouterr()

        assert 1 == out.count("\n")
        assert "stop_string" in err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--temp", "-1"], "'temperature' must be"),
            (["--top-p", "0"], "'p' must be in (0, 1]"),
            (["--max-tokens", "0"], "'n' must be at least 1"),
            (["--target", "tpu"], "target must be one of"),
            (["--compare"], "--compare needs --draft-model"),
            (["--dtype", "int4"], "int4"),
            (["--model", "/no/such/folder"], "/no/such/folder"),
        ],
    )
    def test_refuses(self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        """One line that says what, the rule, and the value; no traceback."""
        status = run("--model", str(PAIR / "target"), "--prompt", "x", *EAGER, *arguments)
        err = capsys.readouterr().err

        assert 1 == status
        assert message in err
        assert "Traceback" not in err

    def test_runs_as_a_module(self) -> None:
        """``python -m decodekit generate --help`` names every flag that people know."""
        done = subprocess.run(
            [sys.executable, "-m", "decodekit", "generate", "--help"],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip

        for flag in [
            "--model",
            "--prompt",
            "--max-tokens",
            "--temp",
            "--top-k",
            "--top-p",
            "--min-p",
            "--seed",
            "--draft-model",
            "--num-draft-tokens",
            "--stream",
        ]:
            assert flag in done.stdout
