"""
Processes that hold one model together.

``torchrun`` starts the same program several times; each process is a rank. All ranks run the same
Python, feed the same ids and get the same logits, and nobody tells anybody about tokens:

- What a rank computes of its share is summed by an all-reduce. The sum is the same bits on
  every rank, because each piece of it is added up once and then handed to all, not added up on
  each rank in an order of its own. The logits are such a sum (:mod:`.parallel_layers`).
- Sampling is pure: a function of logits, seed, stream and position (:mod:`decodekit.decoding.sampling.noise`).
  Equal logits give equal tokens, greedy or sampled, with or without a draft.

What could still part them is the program itself: another seed, another prompt, a time limit
that one rank reaches and another does not. So every forward begins with a comparison of what is
fed (:meth:`Ranks.check_same`), one sum of two numbers, and ranks that are apart learn it then
rather than through nonsense.
"""

import contextlib
import os
import sys
import zlib
from collections.abc import Iterator
from datetime import timedelta

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from ...decoding.validation import is_whole

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for another, unless the program has made the process group itself."""

PROGRAMS = "decodekit"
"""
The process group of compiled programs, by the name that is written into them.

They have one of their own because a program runs with Python's lock held. A thread of gloo that
wants the lock, to let go of a tensor that came from Python, holds the group's lock meanwhile; a
program that waited for the group would then wait for ever. No tensor of Python's enters this one.
"""

_TEXT = 2048
"""Bytes of an error that the other ranks hear of."""

_LOST = ("gloo", "nccl", "closed by peer", "reset by peer", "timed out waiting")


class LostRank(RuntimeError):  # noqa: N818 (it reads as a sentence where it is raised)
    """Another rank has ended, failed or stopped answering; this one cannot go on without it."""


@attrs.frozen
class Ranks:
    """A process among those that hold one model together."""

    degree: int
    """How many there are."""

    rank: int
    """Which of them this is, from 0."""

    group: str
    """The name of their process group."""

    @classmethod
    def of_environment(cls, tp_degree: int) -> "Ranks | None":
        """
        The ranks that ``torchrun`` has started; None if *tp_degree* is 1.

        Makes the process group, unless the program has made one.

        Raises:
            ValueError: *tp_degree* is no whole number >= 1, or not how many processes there are.
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
        _make_group_of_programs()
        group = dist.distributed_c10d._get_default_group()
        return cls(degree=tp_degree, rank=dist.get_rank(), group=group.group_name)

    def check_same(self, *tensors: Tensor) -> None:
        """
        Compare *tensors*, on the host, with those of the other ranks; shapes count.

        Raises:
            ValueError: Some rank has others. Every rank learns it.
        """
        if not self.have_same(*(part for tensor in tensors for part in _content(tensor))):
            raise ValueError(
                "every rank must feed the same ids at the same positions: got others on another rank; "
                "all must run the same program with the same prompts, seeds and limits, "
                "and none may be a limit of time"
            )

    def check_call(self, *arguments: object) -> None:
        """
        Compare what the ranks are called with.

        Raises:
            ValueError: Some rank has other *arguments*. Every rank learns it.
        """
        if not self.have_same(repr(arguments).encode()):
            raise ValueError(
                f"every rank must make the same calls: got other arguments than {arguments} on another rank; "
                "target 'auto' is 'cuda' where there is a GPU, else 'cpu' where there is a C++ compiler, "
                "else 'eager'"
            )

    def have_same(self, *content: bytes) -> bool:
        """Whether all ranks call with the same bytes, up to chance of 1 in 2^32."""
        digest = 0
        for part in content:
            digest = zlib.crc32(part, digest)
        extremes = torch.tensor([digest, -digest])
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
        return bool(extremes[0] == -extremes[1])

    def from_first(self, content: bytes) -> bytes:
        """What rank 0 calls with."""
        size = torch.tensor([len(content)])
        dist.broadcast(size, 0)
        data = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0:
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if len(data):
            dist.broadcast(data, 0)
        return data.numpy().tobytes()

    def all_agree(self, yes: bool) -> bool:
        """Whether all ranks say so."""
        answer = torch.tensor([int(yes)])
        dist.all_reduce(answer, dist.ReduceOp.MIN)
        return bool(answer)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """*tensor* of each rank in order, on rank 0; nothing on the others."""
        pieces = [torch.empty_like(tensor) for _ in range(self.degree)] if self.rank == 0 else None
        dist.gather(tensor.contiguous(), pieces)
        return pieces or []

    def exchange(self, error: Exception | None) -> None:
        """
        Wait for all ranks, and fail if one of them has.

        Raises:
            LostRank: Another rank has an *error*.
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
    Refuse what is no number of parts.

    Raises:
        ValueError: *tp_degree* is no whole number >= 1.
    """
    if not is_whole(tp_degree) or tp_degree < 1:
        raise ValueError(f"'tp_degree' must be a whole number >= 1: got {tp_degree!r}")


def _timeout() -> timedelta:
    """How long ranks wait for each other in the process group that there is."""
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


def _make_group_of_programs() -> None:
    """Unless there is one: it goes when the program destroys its process groups."""
    from torch._C._distributed_c10d import _register_process_group, _resolve_process_group

    try:
        _resolve_process_group(PROGRAMS)  # type: ignore[arg-type]  # a name is a string
    except RuntimeError:
        group = dist.new_group(timeout=_timeout())
        _register_process_group(PROGRAMS, group)  # type: ignore[arg-type]


@contextlib.contextmanager
def each_succeeds(ranks: Ranks | None) -> Iterator[None]:
    """
    Make the failure of one rank one of all. The body must not wait for other ranks.

    Raises:
        LostRank: The body has failed on another rank, and not here.
    """
    if ranks is None:
        yield
        return
    try:
        yield
    except Exception as error:
        # The others may be gone by now; what happened here says more.
        with contextlib.suppress(RuntimeError):
            ranks.exchange(error)
        raise
    ranks.exchange(None)


@contextlib.contextmanager
def in_step(ranks: Ranks | None, *tensors: Tensor) -> Iterator[None]:
    """
    Run the body, a forward over *tensors*, on all *ranks* together; None is this process alone.

    Raises:
        ValueError: Some rank has other *tensors*. The body has not run.

        LostRank: A rank is gone.
    """
    if ranks is None:
        yield
        return
    with naming_lost_ranks(ranks):
        ranks.check_same(*tensors)
        yield


@contextlib.contextmanager
def naming_lost_ranks(ranks: Ranks | None) -> Iterator[None]:
    """
    Say so if the body fails because another rank is gone.

    Raises:
        LostRank: A rank has closed its connections, or let this one wait too long.
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
