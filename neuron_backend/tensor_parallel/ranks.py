"""
Processes that share one sharded model.

``torchrun`` starts the same program several times; each process is a rank. All ranks run the same Python,
feed the same ids and get the same logits, so no tokens are communicated:

- Partial results of the ranks are all-reduced. The sum is bit-identical on every rank, because each piece is
  reduced once and then distributed, rather than on each rank in its own order. The logits are such a sum
  (:mod:`.parallel_layers`).
- Sampling is a pure function of logits, seed, random stream and position
  (:mod:`decodekit.decoding.sampling.noise`). Equal logits give equal tokens, greedy or sampled, with or
  without a draft.

Ranks can still diverge because of the program itself: another seed, another prompt, a time limit that only
some of them reach. Every forward therefore begins with a comparison of the inputs
(:meth:`Ranks.check_same`), an all-reduce of two numbers, so that divergence is an error at once.
"""

import atexit
import contextlib
import os
import sys
import weakref
import zlib
from collections.abc import Iterator
from datetime import timedelta

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from ...decoding.validation import is_whole

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

_TEXT = 2048
"""Bytes of an error message that are sent to the other ranks."""

_LOST = ("gloo", "nccl", "closed by peer", "reset by peer", "timed out waiting")


class LostRank(RuntimeError):  # noqa: N818 (it reads as a sentence where it is raised)
    """Another rank has ended, failed or stopped responding; this one cannot continue without it."""


@attrs.frozen
class Ranks:
    """A process among those that share one model."""

    degree: int
    """Number of ranks."""

    rank: int
    """Index of this one, from 0."""

    group: str
    """Name of their process group."""

    @classmethod
    def of_environment(cls, tp_degree: int) -> "Ranks | None":
        """
        The ranks that ``torchrun`` started; None if *tp_degree* is 1.

        Initialises the process group, unless the program has done so, and destroys it when the program ends.

        Raises:
            ValueError: *tp_degree* is not an integer >= 1, or not the number of processes.
        """
        check_degree(tp_degree)
        if tp_degree == 1:
            return None
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
            atexit.register(_destroy_at_exit, weakref.ref(dist.distributed_c10d._get_default_group()))
        _make_group_of_programs()
        group = dist.distributed_c10d._get_default_group()
        return cls(degree=tp_degree, rank=dist.get_rank(), group=group.group_name)

    def check_same(self, *tensors: Tensor) -> None:
        """
        Check on the host that all ranks have equal *tensors*, shapes included.

        Raises:
            ValueError: They differ on some rank. Raised on every rank.
        """
        if not self.have_same(*(part for tensor in tensors for part in _content(tensor))):
            raise ValueError(
                "every rank must feed the same ids at the same positions: got others on another rank; "
                "all must run the same program with the same prompts, seeds and limits, "
                "and none may be a limit of time"
            )

    def check_call(self, *arguments: object) -> None:
        """
        Check that all ranks call with equal *arguments*.

        Raises:
            ValueError: They differ on some rank. Raised on every rank.
        """
        if not self.have_same(repr(arguments).encode()):
            raise ValueError(
                f"every rank must make the same calls: got other arguments than {arguments} on another rank; "
                "target 'auto' is 'cuda' where there is a GPU, else 'cpu' where there is a C++ compiler, "
                "else 'eager'"
            )

    def have_same(self, *content: bytes) -> bool:
        """Whether all ranks pass the same bytes, compared by CRC-32."""
        digest = 0
        for part in content:
            digest = zlib.crc32(part, digest)
        extremes = torch.tensor([digest, -digest])
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
        return bool(extremes[0] == -extremes[1])

    def broadcast(self, content: bytes) -> bytes:
        """Rank 0's *content*, on every rank."""
        size = torch.tensor([len(content)])
        dist.broadcast(size, 0)
        data = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0:
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if len(data):
            dist.broadcast(data, 0)
        return data.numpy().tobytes()

    def all_agree(self, yes: bool) -> bool:
        """Whether *yes* is True on all ranks."""
        answer = torch.tensor([int(yes)])
        dist.all_reduce(answer, dist.ReduceOp.MIN)
        return bool(answer)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """*tensor* of every rank, in order, on rank 0; an empty list on the others."""
        pieces = [torch.empty_like(tensor) for _ in range(self.degree)] if self.rank == 0 else None
        dist.gather(tensor.contiguous(), pieces)
        return pieces or []

    def exchange(self, error: Exception | None) -> None:
        """
        Wait for all ranks, and raise if another has failed.

        Raises:
            LostRank: Another rank passed an *error*.
        """
        text = b"" if error is None else f"{type(error).__name__}: {error}".encode()[:_TEXT]
        mine = torch.zeros(_TEXT, dtype=torch.uint8)
        mine[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        texts = [torch.empty_like(mine) for _ in range(self.degree)]
        dist.all_gather(texts, mine)
        for rank, other in enumerate(texts):
            if error is None and other.any():
                message = bytes(other.tolist()).rstrip(b"\0").decode(errors="replace")
                raise LostRank(f"every rank must succeed: got a failure of rank {rank}: {message}")


def check_degree(tp_degree: int) -> None:
    """
    Validate a number of shards.

    Raises:
        ValueError: *tp_degree* is not an integer >= 1.
    """
    if not is_whole(tp_degree) or tp_degree < 1:
        raise ValueError(f"'tp_degree' must be a whole number >= 1: got {tp_degree!r}")


def _timeout() -> timedelta:
    """Timeout of the current process group."""
    group = dist.distributed_c10d._get_default_group()
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError as error:
        raise ValueError(
            "the process group must have a backend for the CPU, such as 'cpu:gloo,cuda:nccl': "
            f"got {dist.get_backend()}"
        ) from error
    return getattr(backend.options, "_timeout", TIMEOUT)


def _content(tensor: Tensor) -> tuple[bytes, bytes]:
    return repr(tuple(tensor.shape)).encode(), tensor.contiguous().numpy().tobytes()


def _destroy_at_exit(made: "weakref.ref[dist.ProcessGroup]") -> None:
    """
    Destroy the process groups if the program has not replaced the one that was *made*.

    A gloo thread that is still releasing a tensor when the interpreter ends aborts the process. Destroying
    the groups waits for their threads.
    """
    if dist.is_initialized() and dist.distributed_c10d._get_default_group() is made():
        dist.destroy_process_group()


def _make_group_of_programs() -> None:
    """Make :data:`PROGRAM_GROUP` unless it exists; it ends when the program destroys its process groups."""
    from torch._C._distributed_c10d import _register_process_group, _resolve_process_group

    try:
        _resolve_process_group(PROGRAM_GROUP)  # type: ignore[arg-type]  # a name is a string
    except RuntimeError:
        group = dist.new_group(timeout=_timeout())
        _register_process_group(PROGRAM_GROUP, group)  # type: ignore[arg-type]


@contextlib.contextmanager
def fail_together(ranks: Ranks | None) -> Iterator[None]:
    """
    Fail on all ranks if the body fails on one. The body must not wait for other ranks.

    Raises:
        LostRank: The body failed on another rank and not on this one.
    """
    if ranks is None:
        yield
        return
    try:
        yield
    except Exception as error:
        # The others may have ended; this rank's own error is the informative one.
        with contextlib.suppress(RuntimeError):
            ranks.exchange(error)
        raise
    ranks.exchange(None)


@contextlib.contextmanager
def in_lockstep(ranks: Ranks | None, *tensors: Tensor) -> Iterator[None]:
    """
    Run the body, a forward over *tensors*, on all *ranks*, after checking that they have the same inputs.

    Args:
        ranks: None: no check; this process holds the whole model.

        tensors: Inputs of the forward.

    Raises:
        ValueError: The *tensors* of some rank differ. The body has not run.

        LostRank: A rank has ended.
    """
    if ranks is None:
        yield
        return
    with report_lost_ranks(ranks):
        ranks.check_same(*tensors)
        yield


@contextlib.contextmanager
def report_lost_ranks(ranks: Ranks | None) -> Iterator[None]:
    """
    Raise :class:`LostRank` if the body fails because another rank has ended.

    Raises:
        LostRank: A rank closed its connections or did not respond in time.
    """
    try:
        yield
    except LostRank:
        raise
    except Exception as error:
        if ranks is None or not _is_about_a_lost_rank(error):
            raise
        raise LostRank(
            "every rank must answer: got none from another rank, which has ended, failed, or is "
            "busy with something else; its own output says more"
        ) from error


def _is_about_a_lost_rank(error: BaseException | None) -> bool:
    while error is not None:
        text = str(error).lower()
        if isinstance(error, RuntimeError | dist.DistError) and any(sign in text for sign in _LOST):
            return True
        error = error.__cause__
    return False
