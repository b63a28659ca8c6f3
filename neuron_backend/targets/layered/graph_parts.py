"""The graph around a step's layers in two: what runs before them, and what runs after."""

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from .layer_graphs import LayeredGraph, copy_into, placeholder_like

_MADE = "made."
"""Prefix of the names of values that the first part makes."""

_PASSED = "passed."
"""Prefix of the names of what the last layer passes on, which are numbered."""


@attrs.frozen(eq=False)
class Part:
    """A graph, and the names of its inputs and results."""

    module: GraphModule
    inputs: tuple[str, ...]
    results: tuple[str, ...]


@attrs.frozen(eq=False)
class GraphParts:
    """The graph around a step's layers; names are those of :class:`~.step_tensors.StepTensors`, and own."""

    before: Part
    """Without layers it has no results."""

    carried: tuple[str, ...]
    """What is passed to the first layer."""

    shared: tuple[str, ...]
    """What all layers read."""

    after: Part
    """Its results are the step's, and have no names."""


def passed_name(number: int) -> str:
    """Name of the tensor that the last layer passes on as the *number*-th."""
    return f"{_PASSED}{number}"


def around_layers(graph: LayeredGraph) -> GraphParts:
    """The main graph of a step in two parts. Without layers all of it is in the second."""
    nodes = list(graph.main.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    names: dict[Node, str] = dict(zip(inputs, graph.inputs, strict=True))
    computed = [node for node in nodes if node not in names]
    call = next((node for node in computed if node.target is torch.ops.decodekit.layers.default), None)
    if call is None:
        return GraphParts(_part([], names, []), (), (), _part(computed, names, []))
    place = computed.index(call)
    first, last = computed[:place], [node for node in computed[place + 1 :] if node not in call.users]
    wanted = {source for node in (call, *last) for source in node.all_input_nodes}
    made = [node for node in first if node in wanted]
    names |= {node: f"{_MADE}{node.name}" for node in made}
    before = _part(first, names, made)
    names |= {user: passed_name(user.args[1]) for user in call.users}
    carried, shared = (tuple(names[node] for node in given) for given in call.args)
    return GraphParts(before, carried, shared, _part(last, names, []))


def _part(nodes: Sequence[Node], names: Mapping[Node, str], results: Sequence[Node]) -> Part:
    """A graph of *nodes*, which are in order; it returns *results*, or what the output among them does."""
    graph, copies, inside = Graph(), {}, set(nodes)
    outer = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside)
    for node in outer:
        copies[node] = placeholder_like(node, graph)
    for node in nodes:
        if node.op == "output":
            graph.output(map_arg(node.args[0], copies.__getitem__))
        else:
            copy_into(graph, node, copies)
    if not any(node.op == "output" for node in nodes):
        graph.output(tuple(copies[node] for node in results))
    return Part(
        GraphModule(torch.nn.Module(), graph),
        tuple(names[node] for node in outer),
        tuple(names[node] for node in results),
    )
