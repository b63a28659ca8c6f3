"""A disk that can be filled, or what comes closest without the right to mount one."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs

_SIZE = 1_000_000


@attrs.frozen
class SmallDisk:
    """A folder on a disk of a megabyte; or a folder, and a limit of the size of each file."""

    folder: Path
    mounted: bool

    @property
    def how(self) -> str:
        """Which of the two it is."""
        return "a tmpfs" if self.mounted else "RLIMIT_FSIZE"

    @contextlib.contextmanager
    def filled(self, free: int) -> Iterator[None]:
        """Leave so many bytes free."""
        if not self.mounted:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            # Without the signal, writing beyond the limit is an error.
            handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (free, before[1]))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
                signal.signal(signal.SIGXFSZ, handler)
            return
        filler = self.folder / "filler"
        left = shutil.disk_usage(self.folder).free
        filler.write_bytes(bytes(max(0, left - free)))
        try:
            yield
        finally:
            filler.unlink()

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """Nothing can be written; only where the disk is mounted."""
        # Of this mount alone: the whole file system stays writable while removed files are mapped.
        subprocess.run(["mount", "-o", "remount,bind,ro", self.folder], check=True)
        try:
            yield
        finally:
            subprocess.run(["mount", "-o", "remount,bind,rw", self.folder], check=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """A small disk at *folder*."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "decodekit_fuzz", folder]
    may = not os.geteuid() and shutil.which("mount") is not None
    mounted = may and not subprocess.run(mount, check=False, capture_output=True).returncode
    try:
        yield SmallDisk(folder, mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)
