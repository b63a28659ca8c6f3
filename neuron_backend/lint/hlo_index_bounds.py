"""Indices that an HLO module makes by iota, compared with the dimension that they index."""

import re
from collections.abc import Iterator

from .hlo_text import Computations, Instruction

# Operations that keep every element of their operand, and add none.
_SAME_VALUES = ("bitcast", "broadcast", "convert", "copy", "reshape", "transpose")


def scatters_out_of_bounds(instruction: Instruction, computations: Computations) -> bool:
    """Whether an iota among a scatter's indices is longer than its dimension."""
    return instruction.op == "scatter" and _exceeds(instruction, "scatter_dims_to_operand_dims", computations)


def gathers_out_of_bounds(instruction: Instruction, computations: Computations) -> bool:
    """Whether an iota among a gather's indices is longer than its dimension."""
    return instruction.op == "gather" and _exceeds(instruction, "start_index_map", computations)


def _exceeds(instruction: Instruction, map_name: str, computations: Computations) -> bool:
    dimensions = _numbers(instruction, map_name)
    (operand, *_), (_, index, *_) = instruction.operand_shapes, instruction.operand_names
    parts = list(_parts(index, len(dimensions), computations))
    return any(
        length is not None and length > operand[dimension]
        for dimension, part in zip(dimensions, parts, strict=False)
        for length in [_iota_length(part, computations)]
    )


def _parts(index: str, count: int, computations: Computations) -> Iterator[str]:
    """The operands that make up the index vector, one for each dimension."""
    made = _named(index, computations)
    if made is not None and made.op == "concatenate":
        yield from made.operand_names
    elif count == 1:
        yield index


def _iota_length(name: str, computations: Computations) -> int | None:
    """Number of different values; None if the operand is not an iota."""
    made = _named(name, computations)
    while made is not None and made.op in _SAME_VALUES:
        made = _named(made.operand_names[0], computations)
    if made is None or made.op != "iota":
        return None
    (dimension,) = _numbers(made, "iota_dimension")
    return made.dimensions[dimension]


def _named(name: str, computations: Computations) -> Instruction | None:
    every = (one for instructions in computations.values() for one in instructions)
    return next((one for one in every if one.name == name), None)


def _numbers(instruction: Instruction, name: str) -> list[int]:
    found = re.search(rf"\b{name}=\{{?([\d,]+)", instruction.attributes)
    return [int(number) for number in found[1].split(",")] if found else []
