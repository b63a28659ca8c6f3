"""Samplers with state."""

import abc
from typing import ClassVar

import attrs
import torch
from attrs import validators
from torch import Tensor

from ..history import History
from ..optional_protocols import BeginsRuns, StatefulSampler
from ..protocols import Sampler
from ..validation import a_whole_number

MOST_ROWS = 2**20
"""The most rows of a run."""


def begin_sampler(sampler: Sampler | StatefulSampler, batch: int) -> Sampler:
    """*sampler* for one run over *batch* rows."""
    return sampler.begin(batch) if isinstance(sampler, BeginsRuns) else sampler


_a_number_of_rows = validators.and_(a_whole_number, validators.ge(1), validators.le(MOST_ROWS))


@attrs.define(eq=False)
class StatefulRun(abc.ABC):
    """
    One run of a sampler that depends on past logits, with its state.

    A row advances when it is called for the position after its current one; the first position may be
    any. Called for the same position again, as rows that have ended are, it returns the same token and
    keeps its state.
    """

    is_stateful: ClassVar[bool] = True

    batch: int = attrs.field(validator=_a_number_of_rows)
    """The rows of the run, at most :data:`MOST_ROWS`."""

    length: Tensor = attrs.field(init=False)
    """``[batch]`` int64: the number of tokens before each row's latest sample; -1 before the first."""

    sampled: Tensor = attrs.field(init=False)
    """``[batch]`` int64: each row's latest sample."""

    @length.default
    def _no_length(self) -> Tensor:
        # attrs validates after the defaults, which need valid fields; those of a subclass are not set yet.
        _a_number_of_rows(self, attrs.fields(StatefulRun).batch, self.batch)
        return torch.full((self.batch,), -1)

    @sampled.default
    def _no_sample(self) -> Tensor:
        return torch.zeros(self.batch, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """
        Logits ``[batch, 1, vocab]`` to ids ``[batch, 1]``.

        Raises:
            ValueError: Several columns, another batch, or a position that is not the next.
        """
        advancing = self._advancing(history.length)
        if advancing.any():
            # Neither NaN nor infinity has a surprise to learn from; one is taken, as by other samplers.
            odd = ~(logits[:, 0] < torch.inf)
            of_odd = odd.any(dim=-1)
            sampled = self._sample(logits, history, advancing & ~of_odd)
            if of_odd.any():
                # NaN counts as the largest.
                sampled = torch.where(of_odd, logits[:, 0].argmax(dim=-1), sampled)
            self.sampled = torch.where(advancing, sampled, self.sampled)
            self.length = torch.where(advancing, history.length[:, 0], self.length)
        return self.sampled[:, None]

    @abc.abstractmethod
    def _sample(self, logits: Tensor, history: History, advancing: Tensor) -> Tensor:
        """Ids ``[batch]``; the rows that are *advancing* update their state."""

    def _advancing(self, length: Tensor) -> Tensor:
        """Which rows are at the next position, ``[batch]`` bool."""
        (batch, width), name = length.shape, type(self).__name__
        if width != 1:
            raise ValueError(f"{name} depends on past logits and chooses one column at a time: got {width}")
        if batch != self.batch:
            raise ValueError(f"{name} was begun for {self.batch} rows: got {batch}")
        now, current = length[:, 0], self.length
        advancing = (now == current + 1) | (current < 0)
        if not (advancing | (now == current)).all():
            raise ValueError(
                f"{name} is at {current.tolist()} and must continue at the next position or stay: "
                f"got {now.tolist()}"
            )
        return advancing
