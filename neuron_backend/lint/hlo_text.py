"""HLO text as XLA prints it, parsed into instructions."""

import re

import attrs

# Name, shape, operation, operands, attributes.
_INSTRUCTION = re.compile(
    r"^\s*(?P<root>ROOT )?%(?P<name>[\w.\-]+) = (?P<shape>\(.*?\)|\S+) (?P<op>[a-z][\w\-]*)\((?P<rest>.*)$"
)
_COMPUTATION = re.compile(r"^(?:ENTRY )?%(?P<name>[\w.\-]+) \(.*\{$")
_NAME = re.compile(r"%([\w.\-]+)")
_SHAPE = re.compile(r"\b[a-z]\w*\[[^\]]*\]")


@attrs.frozen
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    """Shape of the result, such as ``f32[2,5]{1,0}``; in parentheses for a tuple."""

    op: str
    operands: str
    """Operands with their shapes, as in the text."""

    attributes: str
    """Text after the operands, such as ``to_apply=%add``."""

    is_root: bool

    @property
    def dtype(self) -> str:
        """Dtype of the result; empty for a tuple."""
        return "" if self.shape.startswith("(") else self.shape.partition("[")[0]

    @property
    def dimensions(self) -> tuple[int, ...]:
        """Sizes of the result's dimensions, none for a tuple."""
        return () if self.shape.startswith("(") else _sizes(self.shape)

    @property
    def operand_names(self) -> list[str]:
        """Names of the operands."""
        return _NAME.findall(self.operands)

    @property
    def operand_shapes(self) -> list[tuple[int, ...]]:
        """Sizes of each operand's dimensions."""
        return [_sizes(shape) for shape in _SHAPE.findall(self.operands)]


def _sizes(shape: str) -> tuple[int, ...]:
    return tuple(int(size) for size in re.findall(r"\d+", shape.partition("[")[2].partition("]")[0]))


Computations = dict[str, list[Instruction]]
"""Instructions of a module by computation name."""


def parse_hlo(text: str) -> Computations:
    """Parse an HLO module."""
    computations: Computations = {}
    current: list[Instruction] = []
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = computations.setdefault(head["name"], [])
        elif found := _INSTRUCTION.match(line):
            operands, attributes = _split(found["rest"])
            name, shape, op, root = found.group("name", "shape", "op", "root")
            current.append(Instruction(name, shape, op, operands, attributes, root is not None))
    return computations


def _split(rest: str) -> tuple[str, str]:
    """Text before and after the parenthesis that closes the operands."""
    depth = 1
    for index, character in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return rest[:index], rest[index + 1 :]
    return rest, ""
