"""
Compiled C++ of our own, kept in the user's cache folder for this machine.

The name of a file changes with its source, all that it may include, the compiler, its flags, torch and the
processor. Where the folder cannot be trusted, or a file in it cannot be loaded, files are compiled again by
each process.
"""

import atexit
import hashlib
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ....decoding.user_cache import kept_file
from ...artifacts.machine import cpu_family, instruction_sets
from .cpp_build import build


def compiled_object(source: Path, options: Any, *, kept: bool = True) -> Path:
    """
    The object file of *source*.

    Args:
        source: A file, which may include all others in its folder.

        options: Inductor's compiler options, with ``compile_only``.

        kept: Whether it may be one that was kept, and is kept; otherwise it is made for this process.

    Raises:
        RuntimeError: The compiler failed.
    """
    return _made(f"{source.stem}-{_digest(source.parent, options)}.o", [source], options, kept)


def shared_library(name: str, objects: list[Path], options: Any, *, kept: bool = True) -> Path:
    """
    The shared library of *objects* that :func:`compiled_object` made; arguments and errors as there.

    Its name has those of the objects, and so their digests.
    """
    digest = hashlib.sha256("".join(path.name for path in objects).encode()).hexdigest()[:16]
    return _made(f"{name}-{digest}.so", objects, options, kept)


def _made(name: str, sources: list[Path], options: Any, kept: bool) -> Path:
    make = partial(_built, sources, options)
    found = kept_file("compiled", name, make) if kept else None
    if found is not None:
        return found
    folder = Path(tempfile.mkdtemp(prefix="decodekit_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make(folder)


def _built(sources: list[Path], options: Any, folder: Path) -> Path:
    return build(sources[0].stem, sources, options, folder)


def _digest(folder: Path, options: Any) -> str:
    # Imported on demand: takes a second or two, and only compiling needs it.
    from torch._inductor.cpp_builder import CppBuilder, get_compiler_version_info, get_cpp_compiler

    # The command has every flag; names in it stand for any file.
    command = CppBuilder("name", ["source"], options, "folder").get_command_line()
    compiler = get_compiler_version_info(get_cpp_compiler())
    known = hashlib.sha256(
        repr((command, compiler, torch.__version__, cpu_family(), instruction_sets())).encode()
    )
    for file in sorted(folder.iterdir()):
        known.update(file.name.encode() + file.read_bytes())
    return known.hexdigest()[:16]
