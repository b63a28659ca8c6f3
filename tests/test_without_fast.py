"""The toolkit without its short cuts of processors."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import decodekit

ROOT = pathlib.Path(__file__).parents[1]

CORE = (
    *(f"tests/processors/{room}" for room in ("truncation", "scaling", "penalties", "constraints")),
    *("tests/decoding/sampling", "tests/decoding/test_generator.py"),
    # The compiled routine serves chains whose stages have short cuts.
    "--ignore=tests/decoding/sampling/compiled",
)


@pytest.mark.slow
def test_works_without_the_short_cuts_of_processors(tmp_path: pathlib.Path) -> None:
    """A copy without the folder ``processors/fast`` passes the tests, but for those that mirror it."""
    copy, package = tmp_path / "decodekit", pathlib.Path(decodekit.__file__).parent
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "fast", "fuzz", "build", "dist")
    shutil.copytree(package, copy, ignore=ignored)
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=ignored, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    where = (
        "import decodekit; from importlib.util import find_spec;"
        "print(decodekit.__file__, find_spec('decodekit.processors.fast'))"
    )
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=copy, env=environment, capture_output=True, text=True, check=True
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CORE],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert f"{copy / '__init__.py'} None\n" == found.stdout
    assert 0 == done.returncode, done.stdout[-3000:] + done.stderr[-3000:]
