"""What compiling for the CPU needs: a torch that rounds as eager does, a C++ compiler and an archiver."""

import os
import shutil
import sys

import attrs
import torch

from .kernel_library import archiver

ROUNDS_EVERY_OPERATION = "2.13"
"""
The first torch whose compiled loops round after each operation (PyTorch's issue 185337).

Before, a loop went on with the number that it was about to round, so that logits depended on which operations
share a loop; torch 2.9 cannot compile with ``emulate_precision_casts`` at all.
"""

INSTALL_COMPILER = (
    "'xcode-select --install'"
    if sys.platform == "darwin"
    else "'apt install g++ binutils', or on Fedora and Amazon Linux 'dnf install gcc-c++ binutils'"
)
"""What to do where :func:`has_compiler` is False."""


@attrs.frozen
class Lack:
    """Why nothing can be compiled for the CPU here."""

    needed: str
    """What is needed."""

    found: str
    """What there is instead, after "got"."""

    remedy: str
    """What mends it."""


def lack() -> Lack | None:
    """Why nothing can be compiled for the CPU here; None if it can."""
    if torch.__version__ < ROUNDS_EVERY_OPERATION:
        return Lack(
            f"torch {ROUNDS_EVERY_OPERATION} or newer, whose compiler rounds after each operation",
            f"torch {torch.__version__}",
            f"pip install 'torch>={ROUNDS_EVERY_OPERATION}'",
        )
    if not has_compiler():
        return Lack(
            "a C++ compiler and an archiver, g++ and ar, or what the variables CXX and AR name",
            "not both",
            INSTALL_COMPILER,
        )
    return None


def has_compiler() -> bool:
    """Whether AOTInductor's C++ compiler and an archiver are installed."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    return all(shutil.which(tool) is not None for tool in (compiler, archiver()))


def require() -> None:
    """
    Refuse a machine on which nothing can be compiled for the CPU.

    Raises:
        ValueError: Its torch is too old, or it lacks a C++ compiler or an archiver.
    """
    if (found := lack()) is not None:
        raise ValueError(
            f"target 'cpu' needs {found.needed}: got {found.found}; "
            f"{found.remedy} mends it, and target 'eager' does without"
        )
