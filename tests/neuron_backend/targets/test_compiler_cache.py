"""The folder from which the compiler loads code."""

import os
import stat
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from decodekit.neuron_backend.targets.compiler_cache import private_compiler_cache

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@pytest.mark.parametrize("before", [None, default_cache_dir()])
def test_is_this_users_own(before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the default among everyone's temporary files; afterwards all is as before."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    with private_compiler_cache():
        folder = Path(os.environ[VARIABLE])

        assert tmp_path / "cache" / "compiler" == folder
        assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
    assert before == os.environ.get(VARIABLE)


def test_a_cache_that_cannot_be_written_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a temporary folder."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "file"))
    monkeypatch.delenv(VARIABLE, raising=False)
    with private_compiler_cache():
        folder = Path(os.environ[VARIABLE])

        assert folder.is_dir()
    assert not folder.exists()


def test_a_chosen_folder_is_used_unless_others_can_write_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says how to mend it."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with private_compiler_cache():
        assert str(tmp_path) == os.environ[VARIABLE]
    tmp_path.chmod(0o777)
    with (
        pytest.raises(ValueError, match="must not be writable for the group or others"),
        private_compiler_cache(),
    ):
        pass
