"""Compiled C++ that is kept in the user's cache folder."""

import ctypes
import tempfile
from pathlib import Path

import pytest

from decodekit.neuron_backend.targets.cpu.cpp_build import build
from decodekit.neuron_backend.targets.cpu.kept_objects import compiled_object, shared_library
from decodekit.neuron_backend.targets.cpu.layered.lowered_program import _compiled

from ....toolchain_mark import needs_toolchain

pytestmark = needs_toolchain


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """C++ that includes a file beside it."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "one.h").write_text("inline int one() { return 1; }\n")
    (folder / "two.cpp").write_text('#include "one.h"\nextern "C" int two() { return 2 * one(); }\n')
    return folder / "two.cpp"


def loaded(source: Path) -> ctypes.CDLL:
    """The library of *source*."""
    from torch._inductor.cpp_builder import CppOptions

    made = compiled_object(source, CppOptions(compile_only=True, extra_flags=["-fPIC"]))
    return ctypes.CDLL(str(shared_library("kept", [made], CppOptions())))


def test_a_relative_cache_is_one_of_the_working_directory(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler runs in another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECODEKIT_CACHE", "cache")

    assert loaded(source).two() == 2
    assert {".o", ".so", ".sha256"} == {path.suffix for path in (tmp_path / "cache" / "compiled").iterdir()}


def test_a_damaged_object_is_made_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs could not be linked with it, in this process and in all others."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "cache"))
    loaded(source)
    for path in (tmp_path / "cache" / "compiled").glob("*.o"):
        path.write_bytes(path.read_bytes()[:100])
    for path in (tmp_path / "cache" / "compiled").glob("*.so"):
        # The library in memory keeps its own file.
        path.unlink()

    assert loaded(source).two() == 2


def test_paths_may_have_spaces_and_quotes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the cache and of the sources."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / 'my "own" cache'))
    source.parent.rename(tmp_path / "it's here")

    assert loaded(tmp_path / "it's here" / source.name).two() == 2


def test_libraries_may_be_in_such_a_path(source: Path, tmp_path: Path) -> None:
    """Those of an environment in a folder of the user's."""
    from torch._inductor.cpp_builder import CppOptions

    (tmp_path / "it's here").mkdir()
    options = CppOptions()
    options._libraries_dirs = [str(tmp_path / "it's here")]

    assert build("two", [source], options, tmp_path).is_file()


def test_a_program_may_be_compiled_below_such_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where temporary files are in one."""
    (tmp_path / "it's here").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "it's here"))

    assert _compiled("int known;", [])
