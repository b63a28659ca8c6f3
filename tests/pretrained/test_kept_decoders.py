"""Decoders that are compiled once: what finds one again, and what does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from decodekit.decoding import Generator, Greedy
from decodekit.neuron_backend import compile_decoder
from decodekit.neuron_backend.targets.cpu.cpu_target import CpuTarget
from decodekit.pretrained import kept_decoders
from decodekit.pretrained.kept_decoders import kept_decoder, kept_folder

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

    def test_refuses_what_has_no_name(self, source: Path) -> None:
        """An object's text may be that of another."""
        with pytest.raises(TypeError, match=r"'target' must be a name or numbers .*cache=.*got CpuTarget"):
            kept_folder(source, {"target": CpuTarget()})
        with pytest.raises(ValueError, match=r"divided over processes; .*got tp_degree=2"):
            kept_folder(source, {"tp_degree": 2})


def test_eager_decoders_are_not_kept(source: Path, tmp_path: Path) -> None:
    """There is nothing to compile."""
    said: list[str] = []
    kept = kept_folder(source, {"target": "eager"}, tmp_path / "cache")
    kept_decoder(source, {"target": "eager"}, kept, False, said.append)

    assert [f"preparing {source}"] == said
    assert not kept.exists()


def test_a_cache_that_cannot_be_written_is_said(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder is there nevertheless."""

    class Unsaved:
        target = "cpu"

        def save(self, folder: Path) -> None:
            raise OSError("no space")

    said: list[str] = []
    monkeypatch.setattr(kept_decoders, "compile_decoder", lambda source, **options: Unsaved())

    assert isinstance(kept_decoder(source, {}, tmp_path / "kept", False, said.append), Unsaved)
    assert "not kept, to be compiled again next time: no space" == said[1]


@pytest.mark.slow
class TestFromPretrained:
    def test_the_second_time_it_is_loaded(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the same text and parts; compiled again where it was damaged."""
        compiled = []

        def counted(*arguments: Any, **options: Any) -> Any:
            compiled.append(arguments)
            return compile_decoder(*arguments, **options)

        monkeypatch.setattr(kept_decoders, "compile_decoder", counted)

        def generator(**options: Any) -> Generator:
            return Generator.from_pretrained(
                source, sampler=Greedy(), cache=tmp_path / "cache", progress=False, **{**SHAPE, **options}
            )

        first, second = generator(), generator()

        assert 1 == len(compiled)
        assert first([1, 2]).ids == second([1, 2]).ids
        assert first.stop_condition.finishes == second.stop_condition.finishes

        generator(max_length=32)

        assert 2 == len(compiled)

        kept = kept_folder(source, SHAPE, tmp_path / "cache")
        (kept / "decoder.json").write_text("{}")

        assert first([1, 2]).ids == generator()([1, 2]).ids
        assert 3 == len(compiled)


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
    with pytest.raises(TypeError, match="'cache' keeps a decoder by its model's files"):
        Generator.from_pretrained(tiny_model("llama"), cache=True)
