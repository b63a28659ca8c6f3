"""Replacing a folder as a whole, so that an interruption leaves the old one or the new one."""

import contextlib
import ctypes
import errno
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

try:
    import fcntl
except ImportError:  # not on Windows, where copies of interrupted saves stay
    fcntl = None  # type: ignore[assignment]

# Of linux/fcntl.h and linux/fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

_OLD = ".old"
"""End of the name of a folder that a save has moved away, after the name of the new one."""

_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
"""Errors of file systems without locks of folders."""

_READS = 20
"""How often a folder that is replaced meanwhile is read."""

T = TypeVar("T")


@contextlib.contextmanager
def replaced_folder(final: Path) -> Iterator[Path]:
    """
    A new folder, which takes the place of *final* if the block ends without an error.

    Both are exchanged at once where the system can (``renameat2`` of Linux). Elsewhere *final* is missing for
    a moment; :func:`recover_folder` mends what an interruption leaves then.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    recover_folder(final)
    for copy in _copies(final):
        with contextlib.suppress(OSError), _claimed_copy(copy):
            shutil.rmtree(copy)
    with _fresh(final) as fresh:
        try:
            yield fresh
            _put(fresh, final)
        finally:
            # After an exchange, the old content.
            shutil.rmtree(fresh, ignore_errors=True)


def read_unreplaced(folder: Path, read: Callable[[], T]) -> T:
    """
    What *read* gives, called again if *folder* was replaced meanwhile, as then it may have read of both.

    Raises:
        OSError: The folder is replaced all the time.
    """
    for _ in range(_READS):
        before = folder_identity(folder)
        try:
            result = read()
        except Exception:
            if before == folder_identity(folder):
                raise
        else:
            if before == folder_identity(folder):
                return result
    raise OSError(f"a folder must not be replaced while it is read: got {folder}, replaced {_READS} times")


def folder_identity(folder: Path) -> tuple[int, ...] | None:
    """What differs between a folder and the one that takes its place; None if there is none."""
    try:
        found = folder.stat()
    except OSError:
        return None
    # Numbers of removed folders are used again.
    return found.st_dev, found.st_ino, found.st_mtime_ns


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
    for copy in sorted(_copies(final), key=_modified, reverse=True):
        if _restore(copy, final, complete):
            warnings.warn(
                f"{final} was missing and has been restored from {copy.name}, which an interrupted save left",
                stacklevel=3,
            )
            return


def _restore(copy: Path, final: Path, complete: str) -> bool:
    """Move *copy* to *final* if it is complete and no process has claimed it; whether it was moved."""
    with contextlib.suppress(OSError), _claimed_copy(copy):
        if (copy / complete).is_file():
            copy.rename(final)
            return True
    return False


def _modified(path: Path) -> float:
    """When *path* was modified; 0 if another process has removed it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _put(fresh: Path, final: Path) -> None:
    if not final.exists():
        # Fails if another save was quicker.
        with contextlib.suppress(OSError):
            fresh.rename(final)
            return
    if not _exchange(fresh, final):
        old = fresh.with_name(f"{fresh.name}{_OLD}")
        final.rename(old)
        try:
            fresh.rename(final)
        except OSError:
            old.rename(final)
            raise
        # Another save may remove it too.
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders at once; False if the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    failed = renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return not failed


@contextlib.contextmanager
def _fresh(final: Path) -> Iterator[Path]:
    """A new folder beside *final*, claimed while the block runs."""
    with contextlib.ExitStack() as stack:
        while True:
            fresh = final.parent / f".{final.name}.{uuid.uuid4().hex}"
            fresh.mkdir()
            # Until it is claimed, another save takes it for one that was left behind, and removes it.
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                try:
                    stack.enter_context(_claimed(fresh))
                except OSError as error:
                    # Where there are no locks no save removes copies.
                    if error.errno not in _NO_LOCKS:
                        raise
                if fresh.is_dir():
                    break
        yield fresh


def _copies(final: Path) -> list[Path]:
    """Copies of *final*, of running saves and of interrupted ones."""
    if fcntl is None or not final.parent.is_dir():
        return []
    name = re.compile(rf"\.{re.escape(final.name)}\.[0-9a-f]{{32}}({re.escape(_OLD)})?")
    return [path for path in final.parent.iterdir() if name.fullmatch(path.name) and path.is_dir()]


def _claimed_copy(copy: Path) -> contextlib.AbstractContextManager[None]:
    """Claim *copy*, which a save that runs has claimed by its new folder if this is the old one."""
    new = copy.with_name(copy.name.removesuffix(_OLD))
    return _claimed(new if new.exists() else copy)


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """
    Claim *folder* while the block runs; the end of the process releases it too.

    Raises:
        BlockingIOError: Another process has claimed it.

        OSError: The file system has no such locks.
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
