"""SHA-256 checks of a saved decoder's files, against the hashes in its decoder.json."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ...decoding.file_digest import file_sha256


def sha256(content: bytes) -> str:
    """SHA-256 of *content*, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def check_files(folder: Path, hashes: Mapping[str, str]) -> None:
    """
    Check the hash of every file.

    Args:
        folder: The saved decoder.

        hashes: Path below *folder* to SHA-256, as in :attr:`~.manifest.Manifest.files`.

    Raises:
        ValueError: A file is missing or differs.
    """
    for name in hashes:
        check_present(folder, name)
        check_hash(folder, name, hashes, file_sha256(folder / name))


def check_present(folder: Path, name: str) -> None:
    """Raise ``ValueError`` if the file *name* is missing from *folder*."""
    if not (folder / name).is_file():
        raise ValueError(f"a saved decoder must have every file it lists: got no {folder / name}")


def check_hash(folder: Path, name: str, hashes: Mapping[str, str], found: str) -> None:
    """Raise ``ValueError`` if *found*, the SHA-256 of the file *name*, is not the one in *hashes*."""
    if name not in hashes:
        raise ValueError(f"a saved decoder must list each of its files: got no {name}")
    if found != hashes[name]:
        raise ValueError(f"a saved decoder's files must be as they were saved: got a changed {folder / name}")
