"""The folder in which decodekit keeps files for a user, and whether others may have written to it."""

import os
import stat
from pathlib import Path


def cache_folder() -> Path:
    """
    Folder in which decodekit keeps files for this machine.

    ``$DECODEKIT_CACHE``, or else ``$XDG_CACHE_HOME/decodekit``, or else ``~/.cache/decodekit``.
    """
    own = os.environ.get("DECODEKIT_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(cache) / "decodekit"


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
