"""The programs in ``scripts/``: where they run, and what they do where something is missing."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parents[1] / "scripts"
IN_BASH = [
    path
    for path in sorted(SCRIPTS.iterdir())
    if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env bash")
]
CHANGES_FOLDER = '"$(dirname "$0")/.."'

PYTHON = """#!/bin/sh
# As an interpreter that makes environments: it notes how it was called.
echo "$@" >>calls
[ "$2" = venv ] || exit 0
mkdir -p .venv/bin
cp "$0" .venv/bin/python
"""


def clone(folder: pathlib.Path, *names: str) -> pathlib.Path:
    """A source tree of some scripts, and of an interpreter that only notes how it was called."""
    (folder / "scripts").mkdir(parents=True)
    for name in (*names, "constraints.txt"):
        shutil.copy(SCRIPTS / name, folder / "scripts" / name)
    (folder / "pyproject.toml").touch()
    return program(folder / "python", PYTHON).parent


def program(path: pathlib.Path, text: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(script: str, folder: pathlib.Path, **variables: str) -> subprocess.CompletedProcess[str]:
    bash = shutil.which("bash")
    assert bash is not None
    environment = {**os.environ, "PYTHON": str(folder / "python"), **variables}
    return subprocess.run(
        [bash, f"scripts/{script}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def calls(folder: pathlib.Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize("script", IN_BASH, ids=lambda path: path.name)
def test_a_search_path_of_cd_leads_no_script_away(script: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """``scripts/test`` removes a folder, which must be that of its own source tree."""
    text = script.read_text()
    assert 1 == text.count(CHANGES_FOLDER)
    start = text[: text.index(CHANGES_FOLDER) + len(CHANGES_FOLDER)]
    own, other = tmp_path / "own", tmp_path / "other"
    (other / "scripts").mkdir(parents=True)
    program(own / "scripts" / script.name, f"{start}\npwd\n")

    assert f"{own}\n" == run(script.name, own, CDPATH=str(other)).stdout


@pytest.mark.parametrize("left", ["nothing", "without pip", "whole"])
def test_an_environment_without_pip_is_made_anew(left: str, tmp_path: pathlib.Path) -> None:
    """As venv leaves it without ensurepip; one that is whole is kept."""
    folder = clone(tmp_path / "clone", "venv")
    if left != "nothing":
        broken = "#!/bin/sh\nexit 1\n"
        program(folder / ".venv" / "bin" / "python", PYTHON if left == "whole" else broken)

    done = run("venv", folder)

    assert 0 == done.returncode, done.stderr
    made = [call for call in calls(folder) if call.startswith("-m venv")]
    assert ([] if left == "whole" else ["-m venv --clear .venv"]) == made
    assert "--editable ." in calls(folder)[-1]


def test_an_environment_that_can_get_pip_is_kept(tmp_path: pathlib.Path) -> None:
    """As uv leaves it."""
    folder = clone(tmp_path / "clone", "venv")
    gets = '#!/bin/sh\necho "$@" >>calls\n[ "$2" = ensurepip ] && touch has_pip\n[ -e has_pip ]\n'
    program(folder / ".venv" / "bin" / "python", gets)

    done = run("venv", folder)

    assert 0 == done.returncode, done.stderr
    assert ["-m pip --version", "-m ensurepip"] == calls(folder)[:2]
    assert not any("venv" in call for call in calls(folder))


@pytest.mark.parametrize("absent", ["gcc", "nm", "readelf"])
def test_tools_of_the_stubs_are_looked_for_before_anything_is_installed(
    absent: str, tmp_path: pathlib.Path
) -> None:
    """An environment that is there stays, too."""
    folder = clone(tmp_path / "clone", "venv-neuron", "cuda_stubs.py")
    (folder / ".venv-neuron").mkdir()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("dirname", "rm"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    for name in {"gcc", "nm", "readelf"} - {absent}:
        program(tools / name, "#!/bin/sh\n")

    done = run("venv-neuron", folder, PATH=str(tools))

    assert 1 == done.returncode
    assert f"venv-neuron: '{absent}' must be installed" in done.stderr
    assert (folder / ".venv-neuron").is_dir()
    assert not (folder / "calls").exists()


@pytest.mark.parametrize("script", IN_BASH, ids=lambda path: path.name)
def test_builds_download_nothing(script: pathlib.Path) -> None:
    """An isolated build fetches setuptools each time, where all else is installed once."""
    builds = [line for line in script.read_text().splitlines() if "-m build" in line]

    assert [] == [line for line in builds if "--no-isolation" not in line]


@pytest.mark.parametrize("environment", [True, False])
def test_compile_only_runs_where_decodekit_is(environment: bool, tmp_path: pathlib.Path) -> None:
    """Where the interpreter of the shell has none, in ``.venv``; without that it says what to do."""
    folder = clone(tmp_path / "clone", "compile-only")
    if environment:
        program(folder / ".venv" / "bin" / "python", PYTHON)

    # Isolated and without site-packages: an interpreter in which nothing is installed.
    command = [sys.executable, "-I", "-S", "scripts/compile-only", "model", "--platform", "trn1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)

    if environment:
        assert 0 == done.returncode, done.stderr
        assert ["scripts/compile-only model --platform trn1"] == calls(folder)
    else:
        assert 1 == done.returncode
        assert done.stderr.startswith("compile-only: decodekit must be installed in ")
        assert done.stderr.endswith("or in .venv by scripts/venv\n")
