"""Failures among ranks: one that fails or ends is told to the others, which cannot go on without it."""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from .ranks import Ranks

_TEXT = 2048
"""Bytes of an error message that are sent to the other ranks."""

_LOST = ("gloo", "nccl", "closed by peer", "reset by peer", "timed out waiting")


class LostRank(RuntimeError):  # noqa: N818 (it reads as a sentence where it is raised)
    """Another rank has ended, failed or stopped responding; this one cannot continue without it."""


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
            _exchange(ranks, error)
        raise
    _exchange(ranks, None)


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


def _exchange(ranks: Ranks, error: Exception | None) -> None:
    """
    Wait for all ranks, and raise if another has failed.

    Raises:
        LostRank: Another rank passed an *error*.
    """
    text = b"" if error is None else f"{type(error).__name__}: {error}".encode()[:_TEXT]
    mine = torch.zeros(_TEXT, dtype=torch.uint8)
    mine[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    for rank, other in enumerate(ranks.all_gather(mine)):
        if error is None and other.any():
            message = bytes(other.tolist()).rstrip(b"\0").decode(errors="replace")
            raise LostRank(f"every rank must succeed: got a failure of rank {rank}: {message}")
