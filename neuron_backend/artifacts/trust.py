"""
Which programs this machine has compiled itself.

A program is native code, and a folder with one may come from anywhere. One file for each hash
in :func:`cache_folder` says that the program with that hash was made here.
"""

import contextlib
import hashlib
import os
from pathlib import Path


def cache_folder() -> Path:
    """
    Where decodekit keeps what it makes for this machine.

    ``$DECODEKIT_CACHE``, or else ``$XDG_CACHE_HOME/decodekit``, or else ``~/.cache/decodekit``.
    """
    own = os.environ.get("DECODEKIT_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(cache) / "decodekit"


def sha256(content: bytes) -> str:
    """The hash by which a program is known."""
    return hashlib.sha256(content).hexdigest()


def record(content: bytes) -> None:
    """Remember that this machine compiled that program, if there is a place to write it down."""
    folder = _folder()
    # Without a record nothing is lost but time: the next load compiles again.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / sha256(content)).touch(mode=0o600)


def is_recorded(content: bytes) -> bool:
    """Whether this machine compiled that program."""
    return (_folder() / sha256(content)).is_file()


def _folder() -> Path:
    return cache_folder() / "programs"
