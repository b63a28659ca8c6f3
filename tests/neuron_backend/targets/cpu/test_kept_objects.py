"""Compiled C++ that is kept in the user's cache folder."""

from pathlib import Path

import pytest

from decodekit.neuron_backend.targets.cpu.kept_objects import compiled_object, shared_library

from ....toolchain_mark import needs_toolchain

pytestmark = needs_toolchain


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """C++ that includes a file beside it, in a folder whose name the shell would divide."""
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    (folder / "one.h").write_text("#pragma once\ninline int one() { return 1; }\n")
    (folder / "main.cpp").write_text('#include "one.h"\nextern "C" int two() { return 2 * one(); }\n')
    return folder / "main.cpp"


def test_a_relative_cache_is_one_of_the_working_directory(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler runs in another."""
    from torch._inductor.cpp_builder import CppOptions

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECODEKIT_CACHE", "cache")

    # No quotes or spaces here.
    found = compiled_object(
        source.parent.rename(tmp_path / "plain") / "main.cpp", CppOptions(compile_only=True)
    )

    assert tmp_path / "cache" / "compiled" == found.parent
    assert found.is_file()
