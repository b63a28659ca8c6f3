"""Runs of the C++ compiler with Inductor's options."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def build(name: str, sources: Sequence[Path], options: Any, folder: Path) -> Path:
    """
    Compile or link *sources*, whose paths may have spaces and quotes.

    Args:
        name: Name of the file that is made, without what follows its dot.

        sources: C++ or object files.

        options: Inductor's compiler options.

        folder: Where the file is made; it must be there.

    Returns:
        The file's path, below *folder*.

    Raises:
        RuntimeError: The compiler failed.
    """
    # Imported on demand: takes a second or two, and only compiling needs it.
    from torch._inductor.cpp_builder import CppBuilder, run_compile_cmd

    # It joins paths to a line as they are, which is divided as a shell would; and its own run takes the
    # folder from that line.
    builder = CppBuilder(name, [shlex.quote(str(source.absolute())) for source in sources], options)
    line = builder.get_command_line()
    for libraries in options.get_libraries_dirs():
        # Torch 2.13 quotes folders of headers alone; torch's own libraries are in the environment's folder.
        line = line.replace(f"-L{libraries} ", f"-L{shlex.quote(libraries)} ")
    run_compile_cmd(line, cwd=str(folder))
    return folder / builder.get_target_file_path()
