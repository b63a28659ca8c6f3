"""Writing a file as a whole."""

import stat
import uuid
from os import PathLike
from pathlib import Path


def write_whole(path: str | PathLike[str], content: bytes, mode: int = 0o666) -> None:
    """
    Write a file, or replace it, at once: what reads it, or interrupts this, finds the old content or the new.

    Args:
        path: The file.

        content: All of it.

        mode: Permissions of a new file, less those that the process's umask takes away.

    Raises:
        OSError: It cannot be written. The old content of a file is still there.
    """
    # Of a link, the file that it leads to.
    final = Path(path).resolve()
    if final.exists() and not final.is_file():
        # A pipe or a device.
        final.write_bytes(content)
        return
    unfinished = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
    try:
        unfinished.touch(0o600 if final.exists() else mode)
        unfinished.write_bytes(content)
        if final.exists():
            unfinished.chmod(stat.S_IMODE(final.stat().st_mode))
        unfinished.replace(final)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
