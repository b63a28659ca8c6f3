"""The parts of one prompt of several that run as requests of one row each."""

import attrs

from ..engine.parts import Parts
from ..optional_protocols import NumbersRows


def parts_from_row(parts: Parts, row: int) -> Parts:
    """*parts* for the prompt of number *row*, which its processors find in row 0 of a batch of its own."""
    chain = parts.processors
    numbered = chain.from_row(row) if isinstance(chain, NumbersRows) else chain
    return parts if numbered is chain else attrs.evolve(parts, processors=numbered)
