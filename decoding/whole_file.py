"""Writing a file as a whole."""

import uuid
from os import PathLike
from pathlib import Path


def write_whole(path: str | PathLike[str], content: bytes, mode: int = 0o666) -> None:
    """
    Write a file, or replace it, at once: what reads it, or interrupts this, finds the old content or the new.

    Args:
        path: The file.

        content: All of it.

        mode: Its permissions, less those that the process's umask takes away.

    Raises:
        OSError: It cannot be written. The old content is still there.
    """
    # Of a link, the file that it leads to.
    final = Path(path).resolve()
    unfinished = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
    try:
        unfinished.touch(mode)
        unfinished.write_bytes(content)
        unfinished.replace(final)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
