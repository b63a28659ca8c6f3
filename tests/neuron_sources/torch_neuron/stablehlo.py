"""Counts in a StableHLO module's text, in MLIR's generic form."""

import math
import re
from collections.abc import Collection, Iterator

import attrs

_TYPE = r"tensor<((?:\d+x)*)(\w+)>"
_MOVES = ("transpose", "reshape", "convert", "broadcast_in_dim", "concatenate", "gather", "select")


@attrs.frozen
class Scatter:
    """One scatter."""

    name: str
    """The operand that it writes into, such as ``"%arg3"``."""

    shape: tuple[int, ...]
    """Shape of that operand."""

    indices: int
    """Number of places that it writes, each with an index of its own."""


def scatter_operands(text: str) -> Iterator[Scatter]:
    """Every scatter of a module."""
    for found in re.finditer(r'"stablehlo\.scatter"\((%\w+),.*?\}\) : \((.*?)\) ->', text, re.DOTALL):
        operand, _, updates = (_shape(one) for one in re.findall(_TYPE, found[2]))
        yield Scatter(found[1], operand, math.prod(updates))


def buffer_moves(text: str, shapes: Collection[tuple[int, ...]]) -> int:
    """Number of operations that move, copy or convert a tensor as large as one of *shapes*."""
    sizes = {math.prod(shape) for shape in shapes}
    results = re.findall(rf'"stablehlo\.(?:{"|".join(_MOVES)})".* -> {_TYPE}', text)
    return sum(math.prod(_shape(result)) in sizes for result in results)


def _shape(dimensions: tuple[str, str]) -> tuple[int, ...]:
    return tuple(int(size) for size in dimensions[0].split("x") if size)
