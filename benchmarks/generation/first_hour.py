"""
Question: how long does a newcomer wait, from an empty folder to fast text of a real model.

The commands of the README, one after another, each a process of its own, with an empty cache folder: nothing
that was downloaded or compiled before is found. With --install DIR, a checkout, an environment is made first
and the package installed into it, without pip's cache; the versions are those that it got.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from ..measuring.arguments import add_json, check_at_least, progress
from ..measuring.report import Report, Threshold, finish
from ..measuring.tables import Table
from ..prompts.prompt_sets import prompts

FIRST_TEXT = 90.0
"""Goal: seconds from the first start to the end of its text, downloads apart."""

_ENVIRONMENT = "environment"
_QUESTION = "Why is the sky blue?"
_FETCH = "from decodekit.pretrained import fetch_smollm2; print(fetch_smollm2())"
_VERSIONS = (
    "import json\nfrom decodekit.benchmarks.measuring.machine import versions\nprint(json.dumps(versions()))"
)
_FIRST_START = "first start: compile, and answer a question"


@attrs.frozen
class Stage:
    """A command, and what it took."""

    name: str
    seconds: float
    output: str
    """What it printed on standard output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--install", type=Path, metavar="DIR", help="a checkout, to be installed first (this environment)")
    add("--max-tokens", type=int, default=96, metavar="N", help="new tokens of an answer (%(default)s)")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Run the commands, and report."""
    check_at_least("max_tokens", options.max_tokens, 1)
    # The commands run in another folder.
    checkout = None if options.install is None else options.install.resolve()
    if checkout is not None and not (checkout / "pyproject.toml").exists():
        raise ValueError(f"'install' must be a checkout, with pyproject.toml: got {checkout}")
    with tempfile.TemporaryDirectory() as empty:
        stages = list(_stages(Path(empty), checkout, options.max_tokens))
        python = _interpreter(Path(empty), checkout)
        installed = json.loads(_ran("versions", [python, "-c", _VERSIONS], Path(empty)).output)
    rows = [(stage.name, stage.seconds, _tokens_per_second(stage)) for stage in stages]
    first = next(stage for stage in stages if stage.name == _FIRST_START)
    report = Report(
        benchmark="first-hour",
        question="How long does a newcomer wait, from an empty folder to fast text of a real model?",
        settings={"model": "SmolLM2-135M-Instruct", "dtype": "bfloat16", "tokens": options.max_tokens},
        tables=[Table("Seconds by stage", ("stage", "seconds", "tokens/s"), rows)],
        thresholds=[Threshold("seconds to the first text, compiled", first.seconds, "<=", FIRST_TEXT)],
        notes=["Downloads depend on the network."],
        # Without their output, which has paths of this machine.
        results={stage.name: stage.seconds for stage in stages},
        versions=installed,
    )
    finish(report, options.json)


def _stages(folder: Path, checkout: Path | None, tokens: int) -> Iterator[Stage]:
    python = _interpreter(folder, checkout)
    if checkout is not None:
        make = [sys.executable, "-m", "venv", str(folder / _ENVIRONMENT)]
        yield _ran("make an environment", make, folder)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        constraints = checkout / "scripts" / "constraints.txt"
        limits = ["--constraint", str(constraints)] if constraints.exists() else []
        yield _ran("install", [*pip, *limits, f"{checkout}[gguf]"], folder)
    command = [python, "-m", "decodekit"]
    yield _ran("doctor", [*command, "doctor"], folder)
    model = _ran("download the model (98 MB)", [python, "-c", _FETCH], folder)
    yield model
    source = ["--model", model.output.strip()]
    decoder = [*source, "--dtype", "bfloat16", "--max-length", "1024", "--draft", "lookup"]
    answer = ["--chat", "--max-tokens", str(tokens), "--json"]
    question = [*command, "generate", *decoder, *answer, "--prompt", _QUESTION]
    yield _ran(_FIRST_START, question, folder)
    yield _ran("second start: answer it again", question, folder)
    edit = folder / "edit.txt"
    edit.write_text(
        next(text for kind, text in prompts() if kind == "structured" and "configuration" in text)
    )
    edited = [*command, "generate", *decoder, *answer, "--prompt", f"@{edit}"]
    yield _ran("an edit, with drafts", edited, folder)
    yield _ran("an edit, plain and with drafts", [*edited, "--compare"], folder)
    saved = ["-o", str(folder / "int8"), "--weights", "int8", "--dtype", "bfloat16", "--max-length", "1024"]
    yield _ran("compile in int8 into a folder", [*command, "compile", *source, *saved], folder)
    own = [*command, "generate", "--model", str(folder / "int8"), *answer, "--prompt", _QUESTION]
    yield _ran("answer from that folder", own, folder)


def _interpreter(folder: Path, checkout: Path | None) -> str:
    """Of the environment that is made in *folder* for a *checkout*; else this one."""
    return sys.executable if checkout is None else str(folder / _ENVIRONMENT / "bin" / "python")


def _ran(name: str, command: Sequence[str], folder: Path) -> Stage:
    """Run *command* in *folder*, with the cache folder there."""
    progress(name)
    environment = {**os.environ, "DECODEKIT_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    # Set, it would take the place of the folder within the cache.
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{name!r} must succeed: got status {done.returncode}: {done.stderr[-2000:]}")
    return Stage(name, time.perf_counter() - begun, done.stdout)


def _tokens_per_second(stage: Stage) -> float | None:
    """Of a stage that generated text."""
    if not stage.output.startswith("{"):
        return None
    found: dict[str, Any] = json.loads(stage.output)
    return float(found["statistics"]["tokens_per_second"])
