"""
A C++ compiler that compiles nothing twice: compiled_once.py FOLDER ARGUMENT...

Stands in for g++ in the tests: workers and decoders share what g++ makes of equal sources.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COMPILER = "g++"


def install(folder: Path) -> Path:
    """Write a command into *folder* that compiles there; give its path."""
    # Inductor looks for this name.
    command = folder / COMPILER
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" "{folder}" "$@"\n')
    command.chmod(0o755)
    return command


def key(source: Path, options: list[str]) -> str:
    """Of what g++ makes of a source: its text, the headers beside it, and the options, without its path."""
    texts = [file.read_text() for file in (source, *sorted(source.parent.glob("*.h")))]
    named = "\0".join([*options, *texts]).replace(str(source.parent), "")
    return hashlib.sha256(named.encode()).hexdigest()


def main(folder: Path, arguments: list[str]) -> int:
    """Compile, or copy what was compiled."""
    command = [shutil.which(COMPILER) or COMPILER, *arguments]
    sources = [argument for argument in arguments if argument.endswith(".cpp")]
    if "-c" not in arguments or len(sources) != 1:
        os.execv(command[0], command)
    target = arguments[arguments.index("-o") + 1]
    known = folder / key(Path(sources[0]), [a for a in arguments if a not in (sources[0], target)])
    if not known.exists():
        if status := subprocess.run(command, check=False).returncode:
            return status
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as copy:
            copy.write(Path(target).read_bytes())
        os.replace(copy.name, known)
    shutil.copyfile(known, target)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
