"""
Record of the programs that this machine compiled itself, which are trusted.

A program is native code, and a folder that holds one may come from anywhere. An empty file named after
a program's SHA-256, in ``programs`` below the user's cache folder, marks it as compiled here.
"""

import contextlib
import warnings

from ...decoding.user_cache import cache_folder, private_folder, write_access_problem
from .file_hashes import sha256

_PROGRAMS = "programs"


def record(content: bytes) -> None:
    """Record that this machine compiled the program *content*, if the folder can be written."""
    # Without a record, the next load compiles again.
    with contextlib.suppress(OSError):
        (private_folder(_PROGRAMS) / sha256(content)).touch(mode=0o600)


def is_recorded(content: bytes) -> bool:
    """
    Whether this user compiled the program *content* on this machine.

    A record counts if no other user can have written it: it and its folders must be this user's, or the
    administrator's, and no group or other user may write to them. Otherwise a warning says so.
    """
    try:
        folder = cache_folder() / _PROGRAMS
        entry = folder / sha256(content)
        if not entry.is_file():
            return False
        problem = next(filter(None, map(write_access_problem, (entry, folder, folder.parent))), None)
    except OSError:
        # Of a folder that cannot be searched, or in a home that is not known.
        return False
    if problem is not None:
        warnings.warn(f"{problem}; programs are compiled again", stacklevel=2)
    return problem is None
