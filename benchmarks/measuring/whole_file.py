"""Result files that are replaced as a whole."""

import os
import tempfile
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """
    Write *text* to *file*; if that fails, as on a full disk, the file stays as it was.

    Raises:
        OSError: It cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
        # Temporary files are for their owner alone; results are not.
        fresh.chmod(0o644)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
