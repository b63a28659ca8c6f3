"""C++ that is linked into every program: a thread pool, and the release of Python's lock."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from .kept_objects import compiled_object

_SOURCES = Path(__file__).parent / "csrc"


@contextmanager
def linked(folders: Sequence[Path] = (), libraries: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """
    Context with AOTInductor options that link the objects into the programs it compiles.

    Args:
        folders: Further folders with libraries.

        libraries: Names of further libraries to link.
    """
    # By their file names, so that all of them are linked: an archive after torch's libraries would not be
    # searched for functions that those define.
    files = objects()
    names = [*libraries, *(f":{file.name}" for file in files)]
    with _searched([*folders, *(file.parent for file in files)]):
        yield {"aot_inductor.custom_op_libs": names} if names else {}


def objects() -> list[Path]:
    """The compiled objects; none but on Linux, where linkers take them by their names."""
    if sys.platform != "linux":
        return []
    return [compiled("python_lock"), *pool_objects()]


def pool_objects() -> list[Path]:
    """The compiled thread pool, where there is one."""
    return [compiled("openmp_calls")] if has_pool() else []


def has_pool() -> bool:
    """Whether programs have the thread pool: those of g++ on Linux, since clang calls other functions."""
    from torch._inductor.cpp_builder import is_gcc

    return sys.platform == "linux" and is_gcc()


def compiled(name: str) -> Path:
    """The object of a file in csrc/, which is kept for this machine."""
    known = _compiled(name)
    if not known.is_file():
        # The folder that it was kept in was deleted.
        _compiled.cache_clear()
    return _compiled(name)


@cache
def _compiled(name: str) -> Path:
    # Imported on demand: takes a second or two, and only compiling needs it.
    from torch._inductor.cpp_builder import CppTorchOptions

    return compiled_object(_SOURCES / f"{name}.cpp", CppTorchOptions(compile_only=True))


@contextmanager
def _searched(folders: Sequence[Path]) -> Iterator[None]:
    """Let the linker search *folders* as well."""
    before = os.environ.get("LIBRARY_PATH")
    paths = [*map(str, folders), *([before] if before else [])]
    os.environ["LIBRARY_PATH"] = os.pathsep.join(paths)
    try:
        yield
    finally:
        if before is None:
            del os.environ["LIBRARY_PATH"]
        else:
            os.environ["LIBRARY_PATH"] = before
