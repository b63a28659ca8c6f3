"""Building and keeping the compiled routine."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from decodekit.decoding import History, Sample, SamplingPipeline
from decodekit.decoding.sampling.compiled import library as module
from decodekit.decoding.sampling.compiled.library import library
from decodekit.decoding.sampling.fast_sampling import FastSampling
from decodekit.processors import TopK


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of its own, and no library in memory."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "cache"))
    library.cache_clear()
    yield tmp_path / "cache" / "compiled"
    library.cache_clear()


Compiler = Callable[[str], Path]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Make a compiler of a shell script."""

    def make(script: str) -> Path:
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return make


def test_is_built_once_and_kept(cache: Path, compiler: Compiler, tmp_path: Path) -> None:
    """The next process loads the file; nothing but it and its digest stays in the folder."""
    compiler(f'echo once >> {tmp_path}/calls; exec c++ "$@"')
    assert library() is not None
    kept, digest = sorted(cache.iterdir())
    library.cache_clear()

    assert library() is not None
    assert [kept, digest] == sorted(cache.iterdir())
    assert digest.name == f"{kept.name}.sha256"
    assert "once\n" == (tmp_path / "calls").read_text()
    assert 0 == stat.S_IMODE(kept.stat().st_mode) & 0o077


def test_another_compiler_builds_another(cache: Path, compiler: Compiler) -> None:
    """What was built by one is not used for the other."""
    assert library() is not None
    compiler('exec c++ "$@"')
    library.cache_clear()

    assert library() is not None
    assert 2 == len(list(cache.glob("*.so")))


@pytest.mark.parametrize("writable", ["folder", "file"])
def test_what_others_can_write_is_not_loaded(
    writable: str, cache: Path, compiler: Compiler, tmp_path: Path
) -> None:
    """It is built for this process alone."""
    compiler(f'echo once >> {tmp_path}/calls; exec c++ "$@"')
    assert library() is not None
    path = cache if writable == "folder" else next(cache.glob("*.so"))
    path.chmod(path.stat().st_mode | stat.S_IWOTH)
    library.cache_clear()

    assert library() is not None
    assert "once\nonce\n" == (tmp_path / "calls").read_text()


def test_an_unwritable_cache_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is built for this process alone."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "file"))

    assert library() is not None


def test_without_a_compiler_python_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens; nothing is said."""
    logits = torch.randn(2, 1, 2000, generator=torch.Generator().manual_seed(1))
    history = History(torch.zeros(2, 1, 9).long(), torch.full((2, 1), 5), *2 * (torch.ones(2).long(),))
    expected = SamplingPipeline(TopK(9), Sample(seed=0))(logits, history)[0]
    monkeypatch.setenv("CXX", "no-such-compiler")
    library.cache_clear()
    pipeline = SamplingPipeline(TopK(9), Sample(seed=0))

    assert library() is None
    assert isinstance(pipeline.fast, FastSampling)
    assert torch.equal(expected, pipeline(logits, history)[0])


@pytest.mark.parametrize("script", ["echo no such option >&2; exit 1", "true"])
def test_a_compiler_that_fails_is_named(script: str, cache: Path, compiler: Compiler) -> None:
    """Once; what it wrote does not stay."""
    compiler(script)
    with pytest.warns(UserWarning, match="sampling is not compiled, only slower: .*compiler failed"):
        assert library() is None

    assert library() is None
    assert [] == list(cache.iterdir())


def test_a_compiler_that_does_not_end_is_stopped(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time limit."""
    compiler("exec sleep 60")
    monkeypatch.setattr(module, "_SECONDS", 0.2)
    with pytest.warns(UserWarning, match="timed out"):
        assert library() is None


@pytest.mark.parametrize("digest", ["of the library", "of the damaged file"])
def test_a_damaged_file_is_built_again(digest: str, cache: Path) -> None:
    """It may have been cut by a full disk, or be in a file system without execution."""
    assert library() is not None
    [kept] = cache.glob("*.so")
    library.cache_clear()
    # Not in place: the first one is still mapped.
    kept.unlink()
    kept.write_bytes(b"no library")
    os.chmod(kept, 0o700)
    if digest == "of the damaged file":
        kept.with_name(f"{kept.name}.sha256").write_text(hashlib.sha256(b"no library").hexdigest())

    assert library() is not None
    assert (kept.read_bytes() == b"no library") == (digest == "of the damaged file")
