"""Lint rules and findings, shared by the lints of exported graphs and of HLO."""

from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

CODES = "AWS Neuron SDK 2.32, compiler error codes"
OPERATORS = "AWS Neuron SDK, neuronx-cc list-operators --framework XLA"
TORCH_NEURON = (
    "TorchNeuron (parmoham-aws/test-repo-parmoham 98154b8), neuron_dynamo_backend/decompositions.py"
)

Broken = TypeVar("Broken", bound=Callable[..., bool])


@attrs.frozen
class Rule(Generic[Broken]):
    """A pattern that neuronx-cc is known to refuse, in a node or an instruction."""

    id: str
    """Short and unique, such as ``"sort"``."""

    code: str | None
    """The compiler's error code, such as ``"NCC_EVRF029"``; None if none is published."""

    reason: str
    """What is refused, and what to use instead."""

    source: str
    """Where the refusal is documented."""

    broken_by: Broken = attrs.field(repr=False)
    """Whether a node, or an instruction, breaks the rule."""

    def finding(self, node: str, what: str) -> "Finding":
        """The finding that *node*, whose operation is *what*, breaks this rule."""
        reason = f"{self.code}, {self.reason}" if self.code else self.reason
        return Finding(self.id, node, f"{what}: {reason}", self.source)


@attrs.frozen
class Finding:
    """A node or instruction that breaks a rule."""

    rule: str
    """The :attr:`Rule.id`."""

    node: str
    """Name of the node in the graph or program."""

    message: str
    """The operation, the compiler's error code if it has one, and the reason."""

    source: str
    """Where the refusal is documented."""

    def __str__(self) -> str:
        return f"{self.node}: {self.message} [{self.rule}; {self.source}]"
