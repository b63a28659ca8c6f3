"""What neuronx-cc is known to refuse, whatever form of a graph it is found in."""

from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

CODES = "AWS Neuron SDK 2.32, compiler error codes"
OPERATORS = "AWS Neuron SDK, neuronx-cc list-operators --framework XLA"

Broken = TypeVar("Broken", bound=Callable[..., bool])


@attrs.frozen
class Rule(Generic[Broken]):
    """One thing that a graph must not hold, in whichever form it is looked at."""

    id: str
    """Short and unique, such as ``"sort"``."""

    code: str | None
    """What the compiler calls it, such as ``"NCC_EVRF029"``; None where it has no published name."""

    reason: str
    """What is refused, and what to write in its place."""

    source: str
    """Who says so."""

    broken_by: Broken = attrs.field(repr=False)
    """Whether what is looked at breaks the rule."""

    def finding(self, node: str, what: str) -> "Finding":
        """That *node*, which does *what*, breaks it."""
        reason = f"{self.code}, {self.reason}" if self.code else self.reason
        return Finding(self.id, node, f"{what}: {reason}", self.source)


@attrs.frozen
class Finding:
    """What breaks a rule."""

    rule: str
    """The :attr:`Rule.id`."""

    node: str
    """Its name in the graph or program."""

    message: str
    """The operation, the code where there is one, and the reason."""

    source: str
    """Who says so."""

    def __str__(self) -> str:
        return f"{self.node}: {self.message} [{self.rule}; {self.source}]"
