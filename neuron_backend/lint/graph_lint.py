"""
What neuronx-cc is known to refuse, found in an exported graph.

A list of published refusals, each with its source, and not a compiler: a graph without findings may
still fail there, because of its size or for an undocumented reason. :func:`lint_graph` checks a graph
as it is; :func:`lint_module` first lowers a module as for compilation, constants folded.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from ..lowering.export import lower, name_of
from .graph_rules import RULES, GraphRule
from .rules import Finding


def lint_graph(program: ExportedProgram | GraphModule, rules: Sequence[GraphRule] = RULES) -> list[Finding]:
    """
    Check every node of a graph, those of branches and loop bodies included, against every rule.

    Args:
        program: Result of :func:`torch.export.export` or :func:`~..lowering.export.lower`. The rules read
            shapes and dtypes, which graphs of other tracers may not carry.

        rules: The rules to check; :data:`.graph_rules.TRACED_RULES` where torch_xla lowers the graph.

    Returns:
        Findings in the order of the graph; empty if no rule is broken.
    """
    module = program.graph_module if isinstance(program, ExportedProgram) else program
    return [
        rule.finding(node.name, name_of(node) if node.op == "call_function" else node.op)
        for part in module.modules()
        if isinstance(part, GraphModule)
        for node in part.graph.nodes
        for rule in rules
        if rule.broken_by(node)
    ]


def lint_module(module: nn.Module, inputs: tuple[Any, ...]) -> list[Finding]:
    """Lower *module* for *inputs*, constants folded, and lint the resulting graph."""
    return lint_graph(lower(module, inputs))
