"""What compiling a decoder's programs may cost: counts that grow silently, and that no refusal names."""

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ..lowering.export import name_of
from .rules import Finding

_STATED = "decodekit, neuron_backend/lint/budget.py"

_COPIES = {"clone", "permute", "t", "transpose", "_to_copy", "contiguous"}

# Operations whose result is the buffer that they are given, written or viewed.
_SAME_BUFFER = _COPIES | {"alias", "copy", "flatten", "index_put", "reshape", "scatter", "view"}


@attrs.frozen
class Budget:
    """The largest counts that :func:`lint_budget` lets pass. All are decodekit's own: none is published."""

    scatter_indices: int = 2**24
    """Numbers that one scatter writes, each with an index: as many as float32 counts exactly."""

    buffer_copies: int = 0
    """Copies and transposes, in one program, of a whole tensor that it writes into, such as the cache."""

    float64: int = 0
    """Tensors of float64 in one program."""

    programs: int = 64
    """Programs of one decoder: more than the default widths and spans make, sampling included."""


_REMEDIES = {"scatter_indices": "; take a smaller widest width, widths=(1, 5, ..., 512)"}

BUDGET = Budget()
"""The budget of every decoder."""


@attrs.frozen
class Cost:
    """Counts of one program, named as in :class:`Budget`."""

    scatter_indices: int
    buffer_copies: int
    float64: int

    @classmethod
    def of(cls, graph: GraphModule) -> "Cost":
        """Count in a graph that writes into its inputs by ``copy_`` at its end."""
        called = [node for node in graph.graph.nodes if node.op == "call_function"]
        scatters = [node for node in called if name_of(node) == "scatter"]
        return cls(
            scatter_indices=max((_size(node.args[2]) for node in scatters), default=0),
            buffer_copies=sum(name_of(node) in _COPIES for node in _whole_buffers(graph)),
            float64=sum(_dtype(node) == torch.float64 for node in called),
        )


def lint_budget(graphs: Mapping[str, GraphModule], budget: Budget = BUDGET) -> list[Finding]:
    """
    Compare the costs of a decoder's programs with *budget*.

    Args:
        graphs: Graphs by the programs' names, as :func:`..lowering.step_graphs.lower_step` gives them.

        budget: The largest counts.

    Returns:
        A finding for each count that is exceeded, named after its field.
    """
    findings = [
        Finding(field, name, f"{field} must be <= {most:,}: got {found:,}{_REMEDIES.get(field, '')}", _STATED)
        for name, graph in graphs.items()
        for field, found in attrs.asdict(Cost.of(graph)).items()
        for most in [attrs.asdict(budget)[field]]
        if found > most
    ]
    if len(graphs) > budget.programs:
        message = f"programs must be <= {budget.programs:,}: got {len(graphs):,}; take fewer widths or spans"
        findings.append(Finding("programs", "all", message, _STATED))
    return findings


def _whole_buffers(graph: GraphModule) -> list[Node]:
    """Operations whose result is all of a tensor that the graph writes into."""
    writes = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    found: dict[Node, None] = {node.args[0]: None for node in writes if isinstance(node.args[0], Node)}
    for node in graph.graph.nodes:
        if node.op == "call_function" and name_of(node) in _SAME_BUFFER and node.args[0] in found:
            found[node] = None
    return [node for node in found if node.op == "call_function"]


def _size(node: object) -> int:
    assert isinstance(node, Node)
    return int(node.meta["val"].numel())


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) else None
