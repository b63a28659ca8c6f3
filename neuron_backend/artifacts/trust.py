"""
Record of the programs that this machine compiled itself, which are trusted.

A program is native code, and a folder that holds one may come from anywhere. An empty file named after
a program's SHA-256, in ``programs`` below :func:`cache_folder`, marks it as compiled here.
"""

import contextlib
import os
from pathlib import Path

from .file_hashes import sha256


def cache_folder() -> Path:
    """
    Folder in which decodekit keeps files for this machine.

    ``$DECODEKIT_CACHE``, or else ``$XDG_CACHE_HOME/decodekit``, or else ``~/.cache/decodekit``.
    """
    own = os.environ.get("DECODEKIT_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(cache) / "decodekit"


def record(content: bytes) -> None:
    """Record that this machine compiled the program *content*, if the folder can be written."""
    folder = _folder()
    # Without a record, the next load compiles again.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / sha256(content)).touch(mode=0o600)


def is_recorded(content: bytes) -> bool:
    """Whether this machine compiled the program *content*."""
    return (_folder() / sha256(content)).is_file()


def _folder() -> Path:
    return cache_folder() / "programs"
