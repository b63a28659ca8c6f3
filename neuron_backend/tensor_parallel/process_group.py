"""The process groups of ranks: one for the host, one for compiled programs."""

import atexit
import os
import sys
import weakref
from datetime import timedelta

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


def join_processes(tp_degree: int) -> "dist.ProcessGroup":
    """
    The process group of the *tp_degree* processes that ``torchrun`` started, and :data:`PROGRAM_GROUP` in it.

    Initialises the process group, unless the program has done so, and destroys it when the program ends.

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
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT)
        atexit.register(_destroy_at_exit, weakref.ref(_default_group()))
    _make_group_of_programs()
    return _default_group()


def _default_group() -> "dist.ProcessGroup":
    return dist.distributed_c10d._get_default_group()


def _make_group_of_programs() -> None:
    """Make :data:`PROGRAM_GROUP` unless it exists; it ends when the program destroys its process groups."""
    from torch._C._distributed_c10d import _register_process_group, _resolve_process_group

    try:
        _resolve_process_group(PROGRAM_GROUP)  # type: ignore[arg-type]  # a name is a string
    except RuntimeError:
        group = dist.new_group(timeout=_timeout())
        _register_process_group(PROGRAM_GROUP, group)  # type: ignore[arg-type]


def _timeout() -> timedelta:
    """Timeout of the current process group."""
    group = _default_group()
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError as error:
        raise ValueError(
            "the process group must have a backend for the CPU, such as 'cpu:gloo,cuda:nccl': "
            f"got {dist.get_backend()}"
        ) from error
    return getattr(backend.options, "_timeout", TIMEOUT)


def _destroy_at_exit(made: "weakref.ref[dist.ProcessGroup]") -> None:
    """
    Destroy the process groups if the program has not replaced the one that was *made*.

    A gloo thread that is still releasing a tensor when the interpreter ends aborts the process. Destroying
    the groups waits for their threads.
    """
    if dist.is_initialized() and _default_group() is made():
        dist.destroy_process_group()
