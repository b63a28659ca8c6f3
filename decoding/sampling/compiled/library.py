"""
The compiled routine, built once for a machine.

It is kept in the user's cache folder, under a name that changes with its source, the compiler and the
architecture. Without a C++ compiler there is none, and Python samples instead: the same tokens, later.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

from ...user_cache import kept_file

_SOURCES = Path(__file__).parent / "csrc"

_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", "-fno-math-errno")
"""No contraction: a product and a sum would round once where the definition rounds twice."""

_SECONDS = 60
"""Time limit of the compiler, which takes one or two."""


@functools.cache
def library() -> ctypes.PyDLL | None:
    """
    The library, compiled on the first call if need be, in a second or two.

    Returns:
        None if there is no C++ compiler, ``$CXX`` or else ``c++``; or, with a warning, if it failed.
    """
    compiler = shutil.which(os.environ.get("CXX") or "c++")
    if compiler is None or os.name != "posix":
        return None
    try:
        return _kept(compiler) or _temporary(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        warnings.warn(f"sampling is not compiled, only slower: {compiler} failed: {said[:500]}", stacklevel=2)
        return None


def _kept(compiler: str) -> ctypes.PyDLL | None:
    """The library in the cache folder; None if that cannot be written, or others can write to it."""
    name = f"few_tokens-{_name(compiler)}.so"
    path = kept_file("compiled", name, functools.partial(_compiled, compiler))
    try:
        return None if path is None else ctypes.PyDLL(str(path))
    except OSError:
        return None


def _temporary(compiler: str) -> ctypes.PyDLL:
    """The library, for this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        # Once loaded it does not need its file.
        return ctypes.PyDLL(str(_compiled(compiler, Path(folder))))


def _compiled(compiler: str, folder: Path) -> Path:
    path = folder / "few_tokens.so"
    command = [compiler, *_FLAGS, "-o", str(path), str(_SOURCES / "few_tokens.cpp")]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    return path


def _name(compiler: str) -> str:
    """A name that changes with all that the library depends on."""
    known = hashlib.sha256(" ".join((compiler, platform.machine(), platform.platform(), *_FLAGS)).encode())
    for source in sorted(_SOURCES.iterdir()):
        known.update(source.read_bytes())
    return known.hexdigest()[:16]
