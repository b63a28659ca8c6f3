"""``python -m decodekit compile`` and ``doctor``."""

import json
import pathlib
from typing import Any

import pytest

from decodekit.__main__ import main
from decodekit.neuron_backend import (
    NativeTarget,
    TracedTarget,
    compile_command,
    doctor_command,
    load_decoder,
)
from decodekit.neuron_backend.targets.cpu import toolchain

from ..toolchain_mark import needs_toolchain

DRAFT = pathlib.Path(__file__).parents[2] / "examples" / "pair" / "draft"


class TestCompile:
    """A model compiled into a folder."""

    @pytest.mark.slow
    @needs_toolchain
    def test_is_loaded_with_its_tokenizer(
        self, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With the shapes that were asked for."""
        folder = tmp_path / "saved"

        status = main([
            "compile", "--model", str(DRAFT), "-o", str(folder), "--target", "cpu",
            "--batch-size", "2", "--max-length", "32", "--widths", "1", "4", "--weights", "int8",
        ])  # fmt: skip

        assert status == 0
        loaded = load_decoder(folder)
        assert (loaded.shape.batch_size, loaded.shape.max_length, loaded.shape.widths) == (2, 32, (1, 4))
        assert loaded.tokenizer is not None
        assert str(folder) in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--target", "gpu"], "'target' must be one of"),
            (
                ["--target", "cpu", "--compiler-args=-O1"],
                "--compiler-args are neuronx-cc's, for a Neuron target: got '-O1' for target 'cpu'",
            ),
            (["--target", "cpu", "--tp-degree", "0"], "'tp_degree' must be"),
        ],
    )
    def test_refuses(
        self, more: list[str], message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Before anything is loaded or written."""
        status = main(["compile", "--model", "nowhere", "-o", str(tmp_path / "saved"), *more])

        assert status == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "saved").exists()

    def test_another_folder_is_refused_before_anything_is_compiled(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What is in it stays."""
        (tmp_path / "mine").write_text("kept")
        monkeypatch.setattr(compile_command, "compile_decoder", None)
        status = main(["compile", "--model", str(DRAFT), "-o", str(tmp_path), "--target", "eager"])

        assert 1 == status
        assert "'folder' must be new, empty or a saved decoder" in capsys.readouterr().err
        assert "kept" == (tmp_path / "mine").read_text()

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("neuron-native", NativeTarget(compiler_args=("--auto-cast", "none", "-O1"))),
            ("neuron-traced", TracedTarget(compiler_args="--auto-cast none -O1")),
        ],
    )
    def test_hands_compiler_arguments_to_the_target(
        self, name: str, expected: object, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In place of the target's own, with the number of shards and programs of single rows."""
        told: dict[str, Any] = {}

        def compile_decoder(model: str, **options: Any) -> Any:
            told.update(options)
            raise ValueError("not compiled here")

        monkeypatch.setattr(compile_command, "compile_decoder", compile_decoder)
        rows = ["--row-widths", "5", "128", "--copies-rows"]
        more = ["--target", name, "--tp-degree", "2", *rows, "--compiler-args=--auto-cast none -O1"]
        main(["compile", "--model", str(DRAFT), "-o", str(tmp_path / "saved"), *more])

        assert (expected, 2) == (told["target"], told["tp_degree"])
        assert ([5, 128], True) == (told["row_widths"], told["copies_rows"])


class TestDoctor:
    """What the machine has."""

    def test_text_has_every_fact(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A line each; what is not installed is said so."""
        assert main(["doctor"]) == 0

        lines = capsys.readouterr().out.splitlines()
        for name in doctor_command.machine_facts():
            assert any(line.startswith(name) for line in lines)

    def test_json(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The same as Python has them, with what the cache folder takes."""
        monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path))
        (tmp_path / "decoders").mkdir()
        (tmp_path / "decoders" / "weights").write_bytes(bytes(2_000_000))
        (tmp_path / "link").symlink_to(tmp_path / "decoders" / "weights")

        assert main(["doctor", "--json"]) == 0

        facts = json.loads(capsys.readouterr().out)
        assert facts == doctor_command.machine_facts()
        assert str(tmp_path) == facts["cache folder"]
        assert facts["cache size"].startswith("2 MB")

    def test_without_a_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The report says why there is no cache folder."""

        def unknown() -> pathlib.Path:
            raise RuntimeError("no home")

        monkeypatch.setattr(pathlib.Path, "home", unknown)
        for variable in ("DECODEKIT_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(variable, raising=False)

        assert "DECODEKIT_CACHE" in doctor_command.machine_facts()["cache folder"]

    def test_without_a_compiler(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What to install, and that models run eagerly."""
        monkeypatch.setattr(doctor_command, "has_compiler", lambda: False)
        monkeypatch.setattr(toolchain, "has_compiler", lambda: False)

        assert main(["doctor"]) == 0

        out = capsys.readouterr().out
        assert toolchain.INSTALL_COMPILER in out
        assert "eager" in out.splitlines()[-1]
