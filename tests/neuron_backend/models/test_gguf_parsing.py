"""Loading a model parses its GGUF file once."""

from pathlib import Path
from typing import Any

import pytest

from decodekit.neuron_backend import UnsupportedArchitecture
from decodekit.neuron_backend.models.gguf_file import load_gguf_model
from decodekit.neuron_backend.models.gguf_parsing import parsed_once

from .test_gguf_file import made, write_gguf

gguf = pytest.importorskip("gguf")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that are parsed from now on, and architectures whose table of names is made."""
    seen: list[str] = []
    make_table = gguf.get_tensor_name_map

    class Reader(gguf.GGUFReader):  # type: ignore[misc]  # untyped in gguf
        def __init__(self, path: str) -> None:
            seen.append(Path(path).name)
            super().__init__(path)

    def counted(architecture: Any, layers: int) -> Any:
        seen.append(gguf.MODEL_ARCH_NAMES[architecture])
        return make_table(architecture, layers)

    monkeypatch.setattr(gguf, "GGUFReader", Reader)
    monkeypatch.setattr(gguf, "get_tensor_name_map", counted)
    return seen


def test_config_and_weights_are_of_one_parse(tmp_path: Path, parsed: list[str]) -> None:
    """Also one table of names for all modules."""
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama")
    parsed.clear()
    load_gguf_model(path, None)

    assert ["llama", "tiny.gguf"] == sorted(parsed)


def test_a_file_that_was_replaced_is_parsed_anew(tmp_path: Path, parsed: list[str]) -> None:
    """Also after one that cannot be loaded, and in a process that was forked meanwhile."""
    path = write_gguf(tmp_path / "tiny.gguf", made("qwen2"), "qwen2", without="blk.1.ffn_up.weight")
    with pytest.raises(UnsupportedArchitecture, match="Qwen2"):
        load_gguf_model(path, None)
    write_gguf(path, made("qwen3"), "qwen3")

    assert "qwen3" == load_gguf_model(path, None).config.model_type

    own = gguf.GGUFReader
    with parsed_once():
        of_parent = gguf.GGUFReader
        of_parent(str(path))
    # As the child of a thread that was within the block finds it.
    gguf.GGUFReader = of_parent
    write_gguf(path, made("llama"), "llama")

    assert "llama" == load_gguf_model(path, None).config.model_type
    assert gguf.GGUFReader is own
