"""Optional capabilities of samplers."""

from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from ..history import History
from ..protocols import Sampler


@runtime_checkable
class Seeded(Protocol):
    """A sampler with a seed, which a generator folds into the rows' random streams."""

    seed: int | None
    """Any integer; None for a fresh one at each call."""


@runtime_checkable
class TakesArgmax(Protocol):
    """A sampler that takes the largest logit, so final stages that keep the argmax are omitted."""

    takes_argmax: bool
    """Whether it does."""


@runtime_checkable
class DrawsSoftmax(Protocol):
    """A sampler that samples from the softmax, as verifications that compare distributions require."""

    draws_softmax: bool
    """Whether it does."""


@runtime_checkable
class RanksTokens(Protocol):
    """A sampler that ranks tokens, as draft trees require."""

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """The *n* top choices ``[batch, width, n]``, first the token that a call samples."""


@runtime_checkable
class MeasuresGap(Protocol):
    """A sampler that measures the margin of its choice, for :attr:`~..generator.Generator.record_gap`."""

    def gap(self, logits: Tensor, history: History) -> Tensor:
        """The margin of each column's token over the next, ``[batch, width]`` float64."""


@runtime_checkable
class DeclaresState(Protocol):
    """A sampler that may depend on past logits; if so, it is refused under speculation."""

    is_stateful: ClassVar[bool]
    """Whether it does."""


@runtime_checkable
class BeginsRuns(Protocol):
    """A sampler that is a configuration; each run begins its own."""

    def begin(self, batch: int) -> Sampler:
        """The sampler of one run over *batch* rows."""


@runtime_checkable
class StatefulSampler(DeclaresState, BeginsRuns, Protocol):
    """
    A sampler that depends on past logits, and so is no function of the history.

    It is a configuration; :meth:`begin` makes the sampler of one run, which holds its state. It
    cannot run under speculation, which would have to undo the state of rejected draft tokens.
    """


def takes_argmax(sampler: object) -> bool:
    """Whether *sampler* takes the largest logit; False if undeclared."""
    return isinstance(sampler, TakesArgmax) and sampler.takes_argmax


def draws_softmax(sampler: object) -> bool:
    """Whether *sampler* is known to draw from the softmax of the logits."""
    return isinstance(sampler, DrawsSoftmax) and sampler.draws_softmax


def is_stateful(sampler: object) -> bool:
    """Whether *sampler* depends on past logits."""
    return isinstance(sampler, DeclaresState) and sampler.is_stateful
