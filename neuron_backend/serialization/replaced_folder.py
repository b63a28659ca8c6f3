"""Replacing a folder as a whole, so that an interruption leaves the old one or the new one."""

import contextlib
import ctypes
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where copies of interrupted saves stay
    fcntl = None  # type: ignore[assignment]

# Of linux/fcntl.h and linux/fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def replaced_folder(final: Path) -> Iterator[Path]:
    """
    A new folder, which takes the place of *final* if the block ends without an error.

    Both are exchanged at once where the system can (``renameat2`` of Linux). Elsewhere *final* is missing for
    a moment; :func:`recover_folder` mends what an interruption leaves then.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    recover_folder(final)
    for copy in _abandoned(final):
        shutil.rmtree(copy, ignore_errors=True)
    fresh = final.parent / f".{final.name}.{uuid.uuid4().hex}"
    fresh.mkdir()
    try:
        with _claimed(fresh):
            yield fresh
            _put(fresh, final)
    finally:
        # After an exchange, the old content.
        shutil.rmtree(fresh, ignore_errors=True)


def recover_folder(final: Path, complete: str = "decoder.json") -> None:
    """
    Put back *final* if an interrupted :func:`replaced_folder` left only copies of it, and warn.

    Args:
        final: The folder.

        complete: Name of a file that only a complete copy has.
    """
    if final.exists():
        return
    # The newest first: a new folder is complete before the old one is moved away.
    for copy in sorted(_abandoned(final), key=lambda path: path.stat().st_mtime, reverse=True):
        if (copy / complete).is_file():
            copy.rename(final)
            warnings.warn(
                f"{final} was missing and has been restored from {copy.name}, which an interrupted save left",
                stacklevel=3,
            )
            return


def _put(fresh: Path, final: Path) -> None:
    if not final.exists():
        # Fails if another save was quicker.
        with contextlib.suppress(OSError):
            fresh.rename(final)
            return
    if not _exchange(fresh, final):
        old = fresh.with_name(f"{fresh.name}.old")
        final.rename(old)
        try:
            fresh.rename(final)
        except OSError:
            old.rename(final)
            raise
        shutil.rmtree(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders at once; False if the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    failed = renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return not failed


def _abandoned(final: Path) -> list[Path]:
    """Copies of *final* that no running save has claimed."""
    if fcntl is None or not final.parent.is_dir():
        return []
    name = re.compile(rf"\.{re.escape(final.name)}\.[0-9a-f]{{32}}(\.old)?")
    found = []
    for path in final.parent.iterdir():
        if name.fullmatch(path.name) and path.is_dir():
            with contextlib.suppress(OSError), _claimed(path):
                found.append(path)
    return found


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """
    Claim *folder* while the block runs; the end of the process releases it too.

    Raises:
        BlockingIOError: Another process has claimed it.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
