"""The folder in which decodekit keeps files for a user, and whether others may have written to it."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from .file_digest import file_sha256


def cache_folder() -> Path:
    """
    Folder in which decodekit keeps files for this machine.

    ``$DECODEKIT_CACHE``, or else ``$XDG_CACHE_HOME/decodekit``, or else ``~/.cache/decodekit``. A relative
    path is one of the working directory.

    Raises:
        OSError: It would be in the user's home, which is not known.
    """
    if own := os.environ.get("DECODEKIT_CACHE"):
        folder = Path(own)
    elif shared := os.environ.get("XDG_CACHE_HOME"):
        folder = Path(shared) / "decodekit"
    else:
        folder = _home() / ".cache" / "decodekit"
    # Compilers run in a directory of their own.
    return folder.absolute()


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise FileNotFoundError(
            "files are kept in the user's home, or where the variable DECODEKIT_CACHE says: got neither"
        ) from error


def cached_bytes() -> int:
    """Bytes of the files below :func:`cache_folder`: kernels, downloads and compiled decoders."""
    sizes = 0
    for path in cache_folder().rglob("*"):
        # Another process may delete it meanwhile.
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                sizes += path.stat().st_size
    return sizes


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


def kept_file(folder: str, name: str, make: Callable[[Path], Path]) -> Path | None:
    """
    The file *name* in the :func:`private_folder` *folder*, made once for this machine.

    Its SHA-256 is kept beside it. A file that differs, as a crash of the machine may leave it, is made again.

    Args:
        folder: Name of the folder.

        name: Name that changes with everything that the content depends on.

        make: Makes the file in an empty folder that it is given, and returns its path.

    Returns:
        None if the folder cannot be written, or others can write to it or the file.
    """
    try:
        own = private_folder(folder)
        if any(map(write_access_problem, (own, own.parent))):
            return None
        path = own / name
        if not _is_whole(path):
            # Elsewhere, so that a full disk is noticed here; then under other names, since several processes
            # may make it at once.
            with (
                tempfile.TemporaryDirectory() as elsewhere,
                tempfile.TemporaryDirectory(dir=own) as temporary,
            ):
                made = Path(shutil.copy(make(Path(elsewhere)), temporary))
                made.chmod(0o700)
                digest = Path(temporary) / "digest"
                digest.write_text(file_sha256(made))
                os.replace(digest, _digest_of(path))
                os.replace(made, path)
        return None if write_access_problem(path) else path
    except OSError:
        return None


def _is_whole(path: Path) -> bool:
    """Whether there is a file at *path*, as it was made."""
    digest = _digest_of(path)
    return path.is_file() and digest.is_file() and digest.read_bytes() == file_sha256(path).encode()


def _digest_of(path: Path) -> Path:
    """The file that has the SHA-256 of the one at *path*."""
    return path.with_name(f"{path.name}.sha256")


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
