"""
Compiled programs kept between compilations, each under the digest of all that it depends on.

Of several programs that take minutes each, those that were compiled before a crash need not be compiled
again. They are in ``kept`` below the user's cache folder, and are deleted :data:`DAYS` days after their last
use.
"""

import contextlib
import io
import json
import os
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ...decoding.user_cache import cache_folder, private_folder
from ...decoding.whole_file import write_whole
from . import trust
from .file_hashes import sha256

DAYS = 30
"""Days after which a program that was not used is deleted."""

_FOLDER = "kept"


def digest_of(graph: bytes, **facts: object) -> str:
    """
    The digest under which the program of *graph* is kept.

    Args:
        graph: What the compiler gets. The shapes and dtypes of inputs and weights are part of it.

        facts: Everything else that the program depends on: arguments and version of the compiler, ...
    """
    return sha256(json.dumps([sha256(graph), facts], sort_keys=True).encode())


def keep(digest: str, files: Mapping[str, bytes]) -> None:
    """Keep the *files* of a program, if the folder can be written."""
    content = _pack(files)
    trust.record(content)
    # Without it, the next compilation makes the program again.
    with contextlib.suppress(OSError):
        folder = private_folder(_FOLDER)
        _delete_old(folder)
        write_whole(folder / digest, content, 0o600)


def kept(digest: str) -> dict[str, bytes] | None:
    """
    The files that were kept under *digest*; None if there are none that are trusted (:mod:`.trust`).

    The hash of the content is recorded, so that what was changed or written in part is not used.
    """
    try:
        path = cache_folder() / _FOLDER / digest
        content = path.read_bytes()
    except OSError:
        return None
    if not trust.is_recorded(content):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return _unpack(content)


def _delete_old(folder: Path) -> None:
    oldest = time.time() - DAYS * 24 * 60 * 60
    for path in folder.iterdir():
        # Another process may delete it at the same time.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                path.unlink()


def _pack(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    # Not compressed: programs hardly shrink. Dated alike, so that equal files have equal content.
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name])
    return packed.getvalue()


def _unpack(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
