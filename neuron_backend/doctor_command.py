"""``python -m decodekit doctor``: what this machine has, and which target ``auto`` would choose."""

import argparse
import json
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ..decoding.user_cache import cache_folder, cached_bytes
from .artifacts.machine import cpu_family, instruction_sets
from .targets.cpu.instruction_limit import instruction_limit
from .targets.cpu.kernel_description import instruction_words
from .targets.cpu.toolchain import INSTALL_COMPILER, has_compiler
from .targets.cuda.cuda_runtime import CudaRuntime
from .targets.neuron.detect import probe
from .targets.registry import automatic_target

_OPTIONAL = ("transformers", "gguf", "llguidance", "ray", "matplotlib")
"""Packages, of which all but the first bring further abilities."""


def doctor(options: argparse.Namespace) -> int:
    """Print the report."""
    facts = machine_facts()
    print(json.dumps(facts, indent=2) if options.json else _text(facts))
    return 0


def machine_facts() -> dict[str, Any]:
    """What this machine has, by name."""
    neuron, lack = probe(), CudaRuntime().lack()
    compiler = shutil.which(os.environ.get("CXX", "g++")) if has_compiler() else None
    return {
        "decodekit": _version("decodekit"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: _version(name) for name in _OPTIONAL},
        "processor": cpu_family(),
        "instruction sets": instruction_words(instruction_sets()),
        "instruction limit": instruction_limit(),
        "threads": torch.get_num_threads(),
        "C++ compiler": compiler or f"none: {INSTALL_COMPILER} installs one",
        "Neuron": str(neuron).splitlines(),
        "GPU": torch.cuda.get_device_name() if lack is None else f"none: {lack}",
        **_cache_facts(),
        "target auto": automatic_target().name,
    }


def _cache_facts() -> dict[str, str]:
    try:
        size = f"{cached_bytes() / 1e6:.0f} MB; it may be deleted, and is made again"
        return {"cache folder": str(cache_folder()), "cache size": size}
    except OSError as error:
        return {"cache folder": f"none: {error}"}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _text(facts: dict[str, Any]) -> str:
    widest = max(map(len, facts))
    return "\n".join(f"{name:{widest}}  {_words(value, widest)}" for name, value in facts.items())


def _words(value: Any, widest: int) -> str:
    if value is None:
        return "not installed"
    if isinstance(value, list):
        # A report of several lines is indented; a list of words is one line.
        separator = f"\n{' ' * (widest + 2)}" if any(" " in each for each in value) else ", "
        return separator.join(value)
    return str(value)
