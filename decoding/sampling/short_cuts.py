"""
Short cuts: faster ways to the results of calls, registered by exact type.

A processor or a sampler is its call. What makes it fast on the host is an object made from it, its
short cuts, which offers some of the protocols of this module. The class does not know them, and a
subclass, which may change the call, does not inherit them. A short cut gives bit for bit the result
of the call.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from torch import Tensor

from ..history import History
from .candidates import Candidates
from .few_tokens import Cell, Few, Floats

Part = TypeVar("Part")

_makers: dict[type, Callable[[Any], object]] = {}
_modules: dict[str, None] = {}
"""Modules that are to be imported before the first look-up, in order."""


def register(kind: type[Part], make: Callable[[Part], object]) -> None:
    """Register the short cuts of *kind*: *make* gives those of an instance. Not used for subclasses."""
    _makers[kind] = make


def register_module(name: str) -> None:
    """Import the module *name*, which registers short cuts, before the first look-up; it may be missing."""
    _modules[name] = None


def short_cuts_of(part: object) -> object | None:
    """The short cuts of *part*; None if none are registered for its exact type."""
    for name in tuple(_modules):
        _import_if_there(name)
        # Only now: until it is imported, another thread must wait for it too.
        _modules.pop(name, None)
    make = _makers.get(type(part))
    return None if make is None else make(part)


def _import_if_there(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise


# Short cuts of processors


@runtime_checkable
class WritesInto(Protocol):
    """Writes the result of a call into given memory."""

    def into(self, logits: Tensor, history: History, out: Tensor) -> Tensor:
        """Write the result of a call into *out*, which may be *logits* itself; on the host."""


@runtime_checkable
class GivesCandidates(Protocol):
    """Returns candidates, such as those of a top-k."""

    def narrow(self, logits: Tensor, history: History) -> Tensor | Candidates:
        """The result of a call, as candidates if they are few; on the host."""


@runtime_checkable
class TakesCandidates(Protocol):
    """Runs a local processor on candidates faster than a call on their logits."""

    def among(self, left: Candidates, history: History) -> Candidates:
        """The result of a call for the candidates."""


@runtime_checkable
class OfFew(Protocol):
    """Runs on the few tokens of one column."""

    takes_few: bool
    """Whether the parameters allow it."""

    def of_few(self, few: Few, cell: Cell) -> Few | None:
        """The result of a call for these tokens; None if a call is needed."""


@runtime_checkable
class Pointwise(OfFew, Protocol):
    """
    Runs before a top-k, on the few tokens that may survive it.

    A token's result depends on its own logit and the history only, and is bounded by :meth:`at_most`
    of any logit that is not smaller.
    """

    def at_most(self, logit: np.float32) -> np.float32:
        """An upper bound for the results of all tokens whose logit is at most *logit*."""


@runtime_checkable
class Narrows(OfFew, Protocol):
    """Finds the few tokens that survive a processor and the stages before it."""

    def to_few(self, logits: Floats, before: Sequence[Pointwise], cell: Cell) -> Few | None:
        """The result of calls of *before* and then this on ``[vocab]``; None if calls are needed."""


# Short cuts of samplers


@runtime_checkable
class SamplesFaster(Protocol):
    """Samples from the whole vocabulary faster than a call."""

    def sample(self, logits: Tensor, history: History) -> Tensor:
        """The result of a call; on the host."""


@runtime_checkable
class SamplesAmong(Protocol):
    """Samples from candidates."""

    def among(self, candidates: Candidates, history: History) -> Tensor:
        """The ids that a call on the whole vocabulary samples, ``[batch, width]``."""


DrawFromFew: TypeAlias = Callable[[Few, Cell], int | None]
"""Samples from a few tokens what a call on the whole vocabulary samples; None if a call is needed."""


@runtime_checkable
class DrawsFromFew(Protocol):
    """Samples from the few tokens of one column."""

    def from_few(self) -> DrawFromFew:
        """The function for one run; it may have state."""
