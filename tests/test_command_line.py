"""``python -m decodekit``."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

from decodekit.__main__ import main
from decodekit.neuron_backend.targets.cpu import aoti
from decodekit.testing import ScriptedDecoder

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
        run("--model", str(PAIR / "target"), "--prompt", "def f(", "--stop", "):", "--no-stream", *EAGER)
        out, err = capsys.readouterr()

        assert "):" not in out
        assert "stop_string" in err

    @pytest.mark.slow
    def test_a_second_start_compiles_nothing(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A compiled decoder is saved, and loaded by an equal call."""
        arguments = [
            "--model", str(PAIR / "draft"), "--prompt", "import os\n", "--max-tokens", "12",
            "--max-length", "64", "--target", "cpu", "--cache", str(tmp_path),
        ]  # fmt: skip
        assert 0 == run(*arguments)
        first = capsys.readouterr()
        monkeypatch.setattr(aoti, "compile_package", None)
        assert 0 == run(*arguments)
        second = capsys.readouterr()

        assert "preparing" in first.err
        assert "preparing" not in second.err
        assert first.out == second.out

    def test_a_saved_decoder_of_another_version_is_compiled_again(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A decoder that cannot be loaded is replaced; one that cannot be saved is still used."""

        class Decoder(ScriptedDecoder):
            target = "cpu"

            def save(self, folder: pathlib.Path, tokenizer: object) -> None:
                folder.mkdir(parents=True)
                (folder / "decoder.json").write_text("{}")
                if len(made) > 1:
                    raise PermissionError("read-only")

        made: list[Decoder] = []

        def compile_decoder(model: str, **arguments: object) -> Decoder:
            made.append(Decoder(torch.zeros(1, 4096), max_length=64, widths=(1, 64), scored_width=1))
            return made[-1]

        monkeypatch.setattr("decodekit.pretrained.kept_decoders.compile_decoder", compile_decoder)
        arguments = ["--model", str(PAIR / "draft"), "--prompt", "x", "--max-tokens", "2"]
        arguments += ["--cache", str(tmp_path)]
        for _ in range(2):
            assert 0 == run(*arguments)

        assert 2 == len(made)
        assert "not kept, to be compiled again next time: read-only" in caplog.text

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--temp", "-1"], "--temp must be finite and at least 0: got -1.0"),
            (["--temp", "nan"], "--temp must be finite and at least 0: got nan"),
            (["--top-k", "-1"], "--top-k must be at least 0: got -1"),
            (["--top-p", "0"], "--top-p must be > 0 and <= 1: got 0.0"),
            (["--top-p", "2"], "--top-p must be > 0 and <= 1: got 2.0"),
            (["--min-p", "2"], "--min-p must be >= 0 and <= 1: got 2.0"),
            (["--repetition-penalty", "0"], "--repetition-penalty must be finite and above 0: got 0.0"),
            (["--max-tokens", "0"], "--max-tokens must be at least 1: got 0"),
            (["--max-length", "0"], "--max-length must be at least 1: got 0"),
            (["--threads", "0"], "--threads must be at least 1: got 0"),
            (["--widths", "0"], "--widths must be at least 1, and ascending: got 0"),
            (["--num-samples", "0"], "--num-samples must be at least 1: got 0"),
            (["--num-samples", "2"], "--num-samples needs --temp above 0 beyond 1: got 2"),
            (["--seed", "3"], "--seed needs --temp above 0, since nothing is sampled: got 3"),
            (["--prompt", ""], "--prompt must not be empty: got ''"),
            (["--prompt", "@/no/such/file"], "got @/no/such/file (No such file or directory)"),
            (["--target", "tpu"], "--target must be one of auto, cpu, "),
            (["--compare"], "--compare needs --draft"),
            (["--num-draft-tokens", "2"], "--num-draft-tokens needs --draft: got 2 without"),
            (
                ["--draft", "lookup", "--num-draft-tokens", "0"],
                "--num-draft-tokens must be at least 1: got 0",
            ),
            (["--dtype", "int4"], "--dtype must be one of float32, bfloat16, float16, float64: got int4"),
            (["--model", "/no/such/folder"], "/no/such/folder"),
        ],
    )
    def test_refuses(self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        """One line with parameter, rule and value; no traceback."""
        status = run("--model", str(PAIR / "target"), "--prompt", "x", *EAGER, *arguments)
        err = capsys.readouterr().err

        assert 1 == status
        assert message in err
        assert "Traceback" not in err

    @pytest.mark.parametrize(
        ("flag", "place", "message"),
        [
            (
                "--model",
                "/no/such/folder",
                "must be a folder, or a hub id such as 'user/name': got '/no/such",
            ),
            (
                "--draft",
                "examples/pairs",
                "must be a folder, or the id of a model on the hub: got 'ex",
            ),
            ("--draft", str(PAIR), f"must be a folder with a config.json: got '{PAIR}', without"),
        ],
    )
    def test_names_the_missing_model(
        self, flag: str, place: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """By its flag, before anything is loaded."""
        models = {"--model": str(PAIR / "target"), "--draft": str(PAIR / "draft"), flag: place}
        status = run("--prompt", "x", *[part for pair in models.items() for part in pair])

        assert 1 == status
        assert f"decodekit: {flag} {message}" in capsys.readouterr().err

    def test_says_which_package_is_missing(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """In a line, as any other error."""
        (tmp_path / "model.gguf").write_bytes(b"GGUF")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        status = run("--model", str(tmp_path / "model.gguf"), "--prompt", "x")

        assert 1 == status
        assert (
            "decodekit: GGUF files are read with the packages gguf and accelerate" in capsys.readouterr().err
        )

    def test_runs_as_a_module(self) -> None:
        """``python -m decodekit generate --help`` lists the usual flags."""
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


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--batchsize", "4"), "unknown flag --batchsize; did you mean --batch-size?"),
        (("--zzz", "1"), "unknown flag --zzz"),
    ],
)
def test_a_mistyped_flag_is_an_error_of_its_command(
    typed: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the flag that it is close to, if it is close to one."""
    with pytest.raises(SystemExit):
        main(["compile", "--model", "m", "-o", "d", *typed])

    assert f"decodekit compile: error: {said}\n" in capsys.readouterr().err


INSPECT = [sys.executable, "-m", "decodekit", "inspect", str(PAIR / "draft")]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_reader_that_stops(unbuffered: dict[str, str]) -> None:
    """As ``head`` does: one exit status, and no word of it, whenever the output is written."""
    ends = os.pipe()
    os.close(ends[0])
    try:
        ended = subprocess.run(
            INSPECT,
            stdout=ends[1],
            stderr=subprocess.PIPE,
            env=BUFFERED | unbuffered,
            text=True,
            check=False,
        )
    finally:
        os.close(ends[1])

    assert (1, "") == (ended.returncode, ended.stderr)


@pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_full_disk(unbuffered: dict[str, str]) -> None:
    """It is said once."""
    with pathlib.Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            INSPECT, stdout=full, stderr=subprocess.PIPE, env=BUFFERED | unbuffered, text=True, check=False
        )

    assert (1, "decodekit: [Errno 28] No space left on device\n") == (ended.returncode, ended.stderr)


def test_a_closed_standard_error() -> None:
    """What is meant for it does not get into the output."""
    # Refused before transformers is imported, which replaces a closed one itself.
    command = [*INSPECT[:3], "generate", "--model", "nowhere", "--prompt", "a", "--temp", "-1"]
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command], stdout=subprocess.PIPE, text=True, check=False
    )

    assert (1, "") == (ended.returncode, ended.stdout)


def test_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status that a shell gives it, and no traceback."""

    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("decodekit.neuron_backend.sizing.inspect_command.inspect", interrupted)

    assert 130 == main(["inspect", "anything"])
