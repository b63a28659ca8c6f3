"""
What neuronx-cc is known to refuse, found in the HLO that it is given.

HLO is the last form under our control: what torch_xla made of a module after every lowering. As in
:mod:`.graph_lint`, a list of published refusals and not a compiler: a program without findings may still
fail because of its size or for an undocumented reason.
"""

import itertools

from .hlo_rules import RULES
from .hlo_text import parse_hlo
from .rules import Finding


def lint_hlo(text: str) -> list[Finding]:
    """
    Check every instruction of an HLO module against every rule.

    Args:
        text: An HLO module as XLA prints it, shapes of operands included, such as the result of
            ``torch_xla.core.xla_builder.get_computation_hlo``.

    Returns:
        Findings in the order of the text; empty if no rule is broken.

    Raises:
        ValueError: *text* has no instruction, or was printed without the shapes of operands.
    """
    computations = parse_hlo(text)
    if not any(computations.values()):
        raise ValueError(f"'text' must be an HLO module: got {text[:60]!r}")
    for instruction in itertools.chain(*computations.values()):
        if instruction.operand_names and not instruction.operand_shapes:
            raise ValueError(
                "'text' must have the shape of every operand (print_operand_shape): "
                f"got {instruction.op}({instruction.operands})"
            )
    return [
        rule.finding(instruction.name, f"{instruction.op} {instruction.shape}")
        for instructions in computations.values()
        for instruction in instructions
        for rule in RULES
        if rule.broken_by(instruction, computations)
    ]
