"""Decoders that are compiled once: what finds one again, and what does not."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from decodekit.decoding import Generator, Greedy
from decodekit.neuron_backend import compile_decoder, load_decoder
from decodekit.neuron_backend.targets.cpu.cpu_target import CpuTarget
from decodekit.neuron_backend.targets.registry import resolve
from decodekit.pretrained import kept_decoders
from decodekit.pretrained.kept_decoders import compile_and_keep, kept_folder, load_kept

from .test_from_files import words

SHAPE: dict[str, Any] = {"target": "cpu", "widths": (1,), "max_length": 16}


@pytest.fixture
def source(tiny_model: Callable[..., PreTrainedModel], tmp_path: Path) -> Path:
    """A model's folder."""
    model = tiny_model("llama")
    model.save_pretrained(tmp_path / "model")
    GenerationConfig(max_new_tokens=5, eos_token_id=60).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


class TestFolder:
    def test_is_the_same_for_the_same_decoder(self, source: Path, tmp_path: Path) -> None:
        """However an option is written, and whether or not a default is."""
        folder = kept_folder(source, {"widths": (1, 5), "dtype": torch.bfloat16}, tmp_path)
        again = {"dtype": "bfloat16", "widths": [1, 5], "batch_size": 1, "target": "auto", "weights": None}

        assert folder == kept_folder(str(source), again, str(tmp_path))
        assert folder.parent == tmp_path

    def test_is_another_for_another(self, source: Path) -> None:
        """Option or model."""
        folders = [
            kept_folder(source, {"max_length": n, "weights": w}) for n in (16, 32) for w in (None, "int8")
        ]
        (source / "generation_config.json").write_text("{}")

        assert 5 == len({*folders, kept_folder(source, {"max_length": 16})})

    def test_is_another_for_another_transformers(self, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its module of the model is what was compiled."""
        before = kept_folder(source, SHAPE)
        monkeypatch.setattr(kept_decoders, "version", lambda package: f"another {package}")

        assert before != kept_folder(source, SHAPE)

    def test_is_another_for_other_sources_of_the_backend(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A version may have had others."""
        (tmp_path / "csrc").mkdir()
        folders = []
        for content in ("one", "two"):
            (tmp_path / "csrc" / "kernels.h").write_text(content)
            monkeypatch.setattr(kept_decoders, "_BACKEND", tmp_path)
            kept_decoders._sources_digest.cache_clear()
            folders.append(kept_folder(source, SHAPE))
        monkeypatch.undo()
        kept_decoders._sources_digest.cache_clear()

        assert 3 == len({*folders, kept_folder(source, SHAPE)})

    def test_is_another_for_another_processor(self, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Machines that share a home keep a decoder each."""
        before = kept_folder(source, SHAPE)
        monkeypatch.setattr(kept_decoders, "instruction_sets", lambda: ["another"])
        other = kept_folder(source, SHAPE)
        monkeypatch.setenv("DECODEKIT_MAX_CPU_ISA", "portable")

        assert 3 == len({before, other, kept_folder(source, SHAPE)})

    def test_what_auto_is_is_said_once(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Where there is no compiler, a warning names the packages that bring it."""
        monkeypatch.setattr("decodekit.neuron_backend.targets.cpu.toolchain.has_compiler", lambda: False)
        shape = {**SHAPE, "target": "auto"}
        Generator.from_pretrained(source, cache=tmp_path / "cache", progress=False, **shape)

        assert 1 == caplog.text.count("compiling needs a C++ compiler")

    def test_refuses_what_has_no_name(self, source: Path) -> None:
        """An object's text may be that of another."""
        with pytest.raises(TypeError, match=r"'target' must be a name or .*cache=.*got CpuTarget"):
            kept_folder(source, {"target": CpuTarget()})
        with pytest.raises(ValueError, match=r"that are divided; .*got tp_degree=2"):
            kept_folder(source, {"tp_degree": 2})

    def test_options_of_the_run_do_not_count(self, source: Path) -> None:
        """Nor does the name of what "auto" is."""
        found = resolve("auto").name

        assert kept_folder(source, {}) == kept_folder(
            source, {"threads": 1, "progress": False, "target": found, "tree_widths": []}
        )

    @pytest.mark.parametrize("widths", [(1.5, 4), ["a"], 1.5])
    def test_refuses_what_are_no_numbers(self, widths: Any, source: Path) -> None:
        """They would find the decoder of others."""
        with pytest.raises(TypeError, match="'widths' must be a name or whole numbers"):
            kept_folder(source, {"widths": widths})

    def test_files_of_any_folder_count(self, source: Path) -> None:
        """Also of one that is named as those of the hub's cache."""
        folder = source.parent / "snapshots" / "newest"
        shutil.copytree(source, folder)
        before = kept_folder(folder, {})
        (folder / "generation_config.json").write_text("{}")

        assert before != kept_folder(folder, {})


def test_eager_decoders_are_not_kept(source: Path, tmp_path: Path) -> None:
    """There is nothing to compile."""
    said: list[str] = []
    kept = kept_folder(source, {"target": "eager"}, tmp_path / "cache")
    compile_and_keep(source, {"target": "eager", "progress": False}, kept, said.append)

    assert [f"preparing {source}"] == said
    assert not kept.exists()


def test_what_another_process_has_kept_meanwhile_stays(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder that was compiled here is not saved too."""

    class Compiled:
        target = "cpu"

    def compile_beside_another(source: Path, **options: Any) -> Compiled:
        compile_decoder(source, target="eager", max_length=16).save(tmp_path / "kept")
        return Compiled()

    monkeypatch.setattr(kept_decoders, "compile_decoder", compile_beside_another)

    assert isinstance(compile_and_keep(source, {}, tmp_path / "kept"), Compiled)
    assert 16 == load_decoder(tmp_path / "kept").shape.max_length


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_a_cache_that_cannot_be_written_is_said(
    error: type[Exception], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The decoder is there nevertheless."""

    class Unsaved:
        target = "cpu"

        def save(self, folder: Path, tokenizer: Any) -> None:
            raise error("no space")

    monkeypatch.setattr(kept_decoders, "compile_decoder", lambda source, **options: Unsaved())

    assert isinstance(compile_and_keep(source, {}, tmp_path / "kept"), Unsaved)
    assert "not kept, to be compiled again next time: no space" in caplog.text


def test_a_folder_that_cannot_be_searched_has_no_decoder(tmp_path: Path) -> None:
    """A name that is too long fails as a folder without permission does, for the administrator too."""
    assert load_kept(tmp_path / ("x" * 300), {}) is None


@pytest.mark.slow
class TestFromPretrained:
    @pytest.mark.parametrize("own_config", [True, False])
    def test_the_second_time_it_is_loaded(
        self, own_config: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the same parts and text; compiled again where it was damaged."""
        compiled = []

        def counted(*arguments: Any, **options: Any) -> Any:
            compiled.append(arguments)
            return compile_decoder(*arguments, **options)

        monkeypatch.setattr(kept_decoders, "compile_decoder", counted)
        # A relative folder is no repository of a hub.
        monkeypatch.chdir(tmp_path)
        words().save_pretrained(source)
        if not own_config:
            (source / "generation_config.json").unlink()

        def generator(**options: Any) -> Any:
            return Generator.from_pretrained(
                source, sampler=Greedy(), cache="cache", progress=False, **{**SHAPE, **options}
            )

        first, second = generator(), generator(threads=1)

        assert 1 == len(compiled)
        assert (None, 1) == (first.decoder.threads, second.decoder.threads)
        assert first("w1 w2").text == second("w1 w2").text
        assert first.end_of_sequence == second.end_of_sequence
        assert repr(first.parts.processors) == repr(second.parts.processors)

        generator(max_length=32)

        assert 2 == len(compiled)

        (kept_folder(source, SHAPE, "cache") / "decoder.json").write_text("{}")

        assert first("w1 w2").ids == generator()("w1 w2").ids
        assert 3 == len(compiled)
        assert first("w1 w2").ids == generator()("w1 w2").ids
        assert 3 == len(compiled)

    def test_of_a_saved_decoder_is_refused(self, source: Path, tmp_path: Path) -> None:
        """It is kept already."""
        compile_decoder(source, progress=False, **SHAPE).save(tmp_path / "saved")
        with pytest.raises(TypeError, match=r"'cache' keeps what is compiled .*, a saved decoder"):
            Generator.from_pretrained(tmp_path / "saved", cache=True)
        with pytest.raises(TypeError, match="no option 'threads', which is the decoder's: set generator"):
            Generator.from_pretrained(tmp_path / "saved", threads=1)


@pytest.mark.parametrize(
    ("cache", "message"),
    [(1.5, "'cache' must be True, False or a folder: got 1.5"), (None, "'cache' must be")],
)
def test_refuses_another_cache(cache: Any, message: str, source: Path) -> None:
    """Before anything is compiled."""
    with pytest.raises(TypeError, match=message):
        Generator.from_pretrained(source, cache=cache)


def test_refuses_a_loaded_model(tiny_model: Callable[..., PreTrainedModel]) -> None:
    """It has no files to tell it from others by."""
    with pytest.raises(TypeError, match=r"'cache' keeps .*: got a loaded model; give its path"):
        Generator.from_pretrained(tiny_model("llama"), cache=True)
