"""The folder in which torch's compiler keeps code between compilations."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...decoding.user_cache import private_folder, write_access_problem

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@contextlib.contextmanager
def private_compiler_cache() -> Iterator[None]:
    """
    Let the compiler load code only from a folder that no other user can write to.

    Its default is a folder of a known name among everyone's temporary files. A folder that was chosen by the
    variable TORCHINDUCTOR_CACHE_DIR is used as it is.

    Raises:
        ValueError: Other users can write to the chosen folder.
    """
    # Imported on demand: only compiling needs it.
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    before = os.environ.get(_VARIABLE)
    if before is not None and before != default_cache_dir():
        problem = write_access_problem(Path(before)) if Path(before).exists() else None
        if problem is not None:
            raise ValueError(f"the compiler loads code from {_VARIABLE}, so {problem}")
        yield
        return
    with _own_folder() as folder:
        os.environ[_VARIABLE] = str(folder)
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(_VARIABLE, None)
            else:
                os.environ[_VARIABLE] = before


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    try:
        folder = private_folder("compiler")
        usable = write_access_problem(folder) is None and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    if usable:
        yield folder
    else:
        # Without a folder to keep, the next process compiles again.
        with tempfile.TemporaryDirectory(prefix="decodekit_compiler_") as temporary:
            yield Path(temporary)
