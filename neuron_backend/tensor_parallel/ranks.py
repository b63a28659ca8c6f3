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

import zlib
from collections.abc import Callable
from datetime import timedelta

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from ...decoding.validation import is_whole
from .process_group import join_processes, process_group


@attrs.frozen
class Ranks:
    """A process among those that share one model."""

    degree: int
    """Number of ranks."""

    rank: int
    """Index of this one, from 0."""

    group: str
    """Name of their process group for tensors of the host."""

    @classmethod
    def of_environment(
        cls, tp_degree: int, start: Callable[[timedelta], None] | None = None
    ) -> "Ranks | None":
        """
        The ranks that ``torchrun`` started; None if *tp_degree* is 1.

        Joins their process group (:func:`~.process_group.join_processes`).

        Args:
            tp_degree: Number of ranks.

            start: As for :func:`~.process_group.join_processes`.

        Raises:
            ValueError: *tp_degree* is not an integer >= 1, or not the number of processes.
        """
        check_degree(tp_degree)
        if tp_degree == 1:
            return None
        group = join_processes(tp_degree, start)
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
        dist.all_reduce(extremes, dist.ReduceOp.MAX, self._host)
        return bool(extremes[0] == -extremes[1])

    def broadcast(self, content: bytes) -> bytes:
        """Rank 0's *content*, on every rank."""
        size = torch.tensor([len(content)])
        dist.broadcast(size, 0, self._host)
        data = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0:
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if len(data):
            dist.broadcast(data, 0, self._host)
        return data.numpy().tobytes()

    def all_agree(self, yes: bool) -> bool:
        """Whether *yes* is True on all ranks."""
        answer = torch.tensor([int(yes)])
        dist.all_reduce(answer, dist.ReduceOp.MIN, self._host)
        return bool(answer)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """*tensor* of every rank, in order, on rank 0; an empty list on the others."""
        pieces = [torch.empty_like(tensor) for _ in range(self.degree)] if self.rank == 0 else None
        dist.gather(tensor.contiguous(), pieces, group=self._host)
        return pieces or []

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """*tensor* of every rank, in order, on every rank."""
        pieces = [torch.empty_like(tensor) for _ in range(self.degree)]
        dist.all_gather(pieces, tensor, self._host)
        return pieces

    @property
    def _host(self) -> "dist.ProcessGroup":
        return process_group(self.group)


def check_degree(tp_degree: int) -> None:
    """
    Validate a number of shards.

    Raises:
        ValueError: *tp_degree* is not an integer >= 1.
    """
    if not is_whole(tp_degree) or tp_degree < 1:
        raise ValueError(f"'tp_degree' must be a whole number >= 1: got {tp_degree!r}")


def _content(tensor: Tensor) -> tuple[bytes, bytes]:
    return repr(tuple(tensor.shape)).encode(), tensor.contiguous().numpy().tobytes()
