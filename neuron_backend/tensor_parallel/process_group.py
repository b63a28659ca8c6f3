"""The process groups of ranks: one for the host, one for compiled programs."""

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for another, unless the program initialised the process group itself."""

PROGRAM_GROUP = "decodekit"
"""
Name of the process group of compiled programs, which is compiled into them.

They need their own group because a program may run with the GIL held (on macOS). A gloo thread that waits for
the GIL, to release a tensor owned by Python, holds its group's lock; a program waiting for that group would
deadlock.
No tensor owned by Python enters this group.
"""

HOST_GROUP = "decodekit-host"
"""Name of the process group for tensors of the host, where the default one takes none of them."""


def join_processes(tp_degree: int, start: Callable[[timedelta], None] | None = None) -> "dist.ProcessGroup":
    """
    Join the *tp_degree* processes that ``torchrun`` started, and make :data:`PROGRAM_GROUP` of them.

    Initialises the process group, unless the program has done so, and destroys it when the program ends.

    Args:
        tp_degree: Number of processes.

        start: Initialises the process group with a timeout. None: with gloo, and NCCL where there is a GPU.

    Returns:
        The process group for tensors of the host.

    Raises:
        ValueError: There are not so many processes, or the program's group has no backend for the CPU.
    """
    made = dist.is_available() and dist.is_initialized()
    processes = dist.get_world_size() if made else int(os.environ.get("WORLD_SIZE", "1"))
    if processes != tp_degree:
        program = os.path.basename(sys.argv[0]) or "PROGRAM"
        raise ValueError(
            f"'tp_degree' must be the number of processes, {processes}: got {tp_degree}; "
            f"start the program with: torchrun --nproc-per-node {tp_degree} {program}"
        )
    if not made:
        (start or start_process_group)(TIMEOUT)
        atexit.register(_destroy_at_exit, weakref.ref(_default_group()))
    backend = _host_backend()
    timeout = getattr(getattr(backend, "options", None), "_timeout", TIMEOUT)
    _make(PROGRAM_GROUP, lambda: dist.new_group(timeout=timeout))
    # A process group in Python is its own backend for every device (TorchNeuron's, distributed/backend.py).
    if backend is not _default_group():
        return _default_group()
    return _make(HOST_GROUP, lambda: dist.new_group(timeout=timeout, backend="gloo"))


def process_group(name: str) -> "dist.ProcessGroup":
    """
    The process group of that name.

    Raises:
        RuntimeError: There is none.
    """
    from torch._C._distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)  # type: ignore[arg-type]  # a name is a string


def start_process_group(timeout: timedelta) -> None:
    """Initialise the process group with gloo, and NCCL where there is a GPU."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=timeout)


def _default_group() -> "dist.ProcessGroup":
    return dist.distributed_c10d._get_default_group()


def _make(name: str, make: Callable[[], "dist.ProcessGroup"]) -> "dist.ProcessGroup":
    """The process group *name*, made unless it exists; it ends with the program's process groups."""
    from torch._C._distributed_c10d import _register_process_group

    try:
        return process_group(name)
    except RuntimeError:
        group = make()
        _register_process_group(name, group)  # type: ignore[arg-type]  # a name is a string
        return group


def _host_backend() -> Any:
    """
    The backend of the default process group for tensors of the host.

    Raises:
        ValueError: It has none.
    """
    try:
        return _default_group()._get_backend(torch.device("cpu"))
    except RuntimeError as error:
        raise ValueError(
            "the process group must have a backend for the CPU, such as 'cpu:gloo,cuda:nccl': "
            f"got {dist.get_backend()}"
        ) from error


def _destroy_at_exit(made: "weakref.ref[dist.ProcessGroup]") -> None:
    """
    Destroy the process groups if the program has not replaced the one that was *made*.

    A gloo thread that is still releasing a tensor when the interpreter ends aborts the process. Destroying
    the groups waits for their threads.
    """
    if dist.is_initialized() and _default_group() is made():
        dist.destroy_process_group()
