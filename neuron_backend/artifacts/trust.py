"""
Record of the programs that this machine compiled itself, which are trusted.

A program is native code, and a folder that holds one may come from anywhere. An empty file named after
a program's SHA-256, in ``programs`` below :func:`cache_folder`, marks it as compiled here.
"""

import contextlib
import os
import stat
import warnings
from pathlib import Path

from .file_hashes import sha256

_PROGRAMS = "programs"


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
    # Without a record, the next load compiles again.
    with contextlib.suppress(OSError):
        (private_folder(_PROGRAMS) / sha256(content)).touch(mode=0o600)


def private_folder(name: str) -> Path:
    """
    The folder *name* below :func:`cache_folder`, made for this user alone if it is not there.

    Raises:
        OSError: It cannot be made.
    """
    folder = cache_folder() / name
    for path in (folder.parent, folder):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def is_recorded(content: bytes) -> bool:
    """
    Whether this user compiled the program *content* on this machine.

    A record counts if no other user can have written it: it and its folders must be this user's, or the
    administrator's, and no group or other user may write to them. Otherwise a warning says so.
    """
    folder = cache_folder() / _PROGRAMS
    entry = folder / sha256(content)
    if not entry.is_file():
        return False
    problem = next(filter(None, map(write_access_problem, (entry, folder, folder.parent))), None)
    if problem is not None:
        warnings.warn(f"{problem}; programs are compiled again", stacklevel=2)
    return problem is None


def write_access_problem(path: Path) -> str | None:
    """Why users other than this one, and the administrator, can write to *path*; None if they cannot."""
    if not hasattr(os, "geteuid"):
        return None
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()):
        return f"{path} must belong to this user: got user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.filemode(found.st_mode)
        return f"{path} must not be writable for the group or others: got {mode} (chmod go-w mends it)"
    return None
