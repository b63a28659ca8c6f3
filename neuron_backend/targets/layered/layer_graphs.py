"""
Cut of an exported step into one graph for each kind of layer, and the rest.

In the rest, one call of ``decodekit::layers`` stands for all layers.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from ...lowering.complex_pairs import is_no_conversion
from .equal_layers import EqualLayers
from .layer_record import Metadata, metadata

_library: Any = torch.library.Library("decodekit", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("layers(Tensor[] carried, Tensor[] shared) -> Tensor[]")


def layers(carried: Sequence[Tensor], shared: Sequence[Tensor]) -> list[Tensor]:
    """
    All layers of a step; only a name for them in a graph.

    Args:
        carried: What is passed to the first layer.

        shared: What all layers read.

    Returns:
        What the last layer passes on, of the same shapes as *carried*.
    """
    return [tensor.new_empty(tensor.shape) for tensor in carried]


torch.library.register_fake("decodekit::layers", layers, lib=_library)


class NotLayered(ValueError):  # noqa: N818 (it reads as a sentence where it is raised)
    """A step is not compiled layer by layer, for the reason given."""


@attrs.frozen
class Source:
    """Where an input of a layer's graph comes from."""

    kind: str
    """``"carried"``, ``"shared"`` or ``"own"``."""

    number: int = 0
    """Position among what is carried, or among the shared inputs of ``decodekit::layers``."""

    role: str = ""
    """Of the layer's own tensors: which one."""


@attrs.frozen(eq=False)
class LayerGraph:
    """The graph of one kind of layers; it returns what it passes on."""

    module: GraphModule
    sources: tuple[Source, ...]
    """Of each input."""


@attrs.frozen(eq=False)
class LayeredGraph:
    """A step in parts."""

    main: GraphModule
    """What is before and after the layers."""

    inputs: tuple[str, ...]
    """Name of each of its inputs, as :meth:`~.step_tensors.StepTensors.placeholders` gives them."""

    layers: dict[int, LayerGraph]
    """The graph of each kind, by its first layer; empty if all is in :attr:`main`."""

    @property
    def modules(self) -> tuple[GraphModule, ...]:
        """All graphs."""
        return (self.main, *(layer.module for layer in self.layers.values()))


Roles = Mapping[str, tuple[int, str]]
"""Layer and role of each tensor that one layer alone reads, by name."""


def cut(
    exported: ExportedProgram, names: Mapping[str, str], equal: EqualLayers | None, roles: Roles
) -> LayeredGraph:
    """
    Cut a step, as exported with its first ``equal.needed`` layers.

    Args:
        exported: The step; modified.

        names: Name of the tensor that each placeholder stands for.

        equal: The kinds of its layers; None: nothing is cut.

        roles: The layers' own tensors.

    Raises:
        NotLayered: The graph's layers read each other's values in other ways than *equal* says.
    """
    graph = exported.graph_module.graph
    if equal is None:
        return LayeredGraph(
            _whole(graph), tuple(names[node.name] for node in graph.find_nodes(op="placeholder")), {}
        )
    return _Cut(graph, names, equal, roles).parts()


def _whole(graph: Graph) -> GraphModule:
    copy = Graph()
    values: dict[Node, Any] = {}
    result = copy.graph_copy(graph, values)
    copy.output(result)
    return GraphModule(torch.nn.Module(), copy)


class _Cut:
    """The parts of one graph."""

    def __init__(self, graph: Graph, names: Mapping[str, str], equal: EqualLayers, roles: Roles):
        self._names, self._equal, self._roles = names, equal, roles
        for node in list(graph.nodes):
            # Traced as a layer's own, and read by the next in place of what it was made of.
            if is_no_conversion(node):
                node.replace_all_uses_with(node.args[0])
        self._nodes: list[Node] = [node for node in graph.nodes if node.target is not _CHECK]
        self._layer = {node: _layer_of(node, equal.name) for node in self._nodes}
        self._first = next(node for node in self._nodes if self._layer[node] == 0)
        self._shared: list[Node] = []

    def parts(self) -> LayeredGraph:
        kinds = dict.fromkeys(self._equal.kinds)
        graphs = {kind: self._layer_graph(kind) for kind in kinds}
        main, inputs = self._main()
        return LayeredGraph(main, inputs, graphs)

    def _layer_graph(self, layer: int) -> LayerGraph:
        graph, copies, sources = Graph(), {}, []
        inside = [node for node in self._nodes if self._layer[node] == layer]
        # Placeholders first.
        read = list(dict.fromkeys(source for node in inside for source in node.all_input_nodes))
        for node in read:
            for outer in self._outer_inputs(node, layer):
                if outer not in copies:
                    copies[outer] = placeholder_like(outer, graph)
                    sources.append(self._source(outer, layer))
        for node in read:
            if _is_size(node) and self._layer[node] is None:
                self._copy_size(graph, node, copies)
        for node in inside:
            copy_into(graph, node, copies)
        carried = [self._passed(metadata, layer) for metadata in self._equal.carried]
        graph.output(tuple(copies[node] for node in carried))
        return LayerGraph(GraphModule(torch.nn.Module(), graph), tuple(sources))

    def _outer_inputs(self, node: Node, layer: int) -> list[Node]:
        """The inputs that *node*, read in a layer, makes necessary: none if it is of the layer."""
        if self._layer[node] == layer:
            return []
        if _is_size(node):
            # Sizes are computed again from the tensors that have them.
            return [outer for source in node.all_input_nodes for outer in self._outer_inputs(source, layer)]
        return [node]

    def _copy_size(self, graph: Graph, node: Node, copies: dict[Node, Node]) -> None:
        if node in copies:
            return
        for source in node.all_input_nodes:
            self._copy_size(graph, source, copies)
        copy_into(graph, node, copies)

    def _source(self, node: Node, layer: int) -> Source:
        if node.op == "placeholder":
            number, role = self._roles.get(self._names[node.name], (None, ""))
            if number == layer:
                return Source("own", role=role)
            if number is not None:
                raise NotLayered(f"layer {layer} reads {self._names[node.name]}")
        elif self._layer[node] is not None or layer == 0:
            carried = [number for number, each in enumerate(self._equal.carried) if each == _metadata(node)]
            if carried:
                return Source("carried", carried[0])
            if self._layer[node] is not None:
                raise NotLayered(f"layer {layer} reads {node.name} of layer {self._layer[node]}")
        if node not in self._shared:
            self._shared.append(node)
        return Source("shared", self._shared.index(node))

    def _passed(self, metadata: Metadata, layer: int) -> Node:
        """The node of *layer* with *metadata* that others read."""
        found = [
            node
            for node in self._nodes
            if self._layer[node] == layer
            and _metadata(node) == metadata
            and any(self._layer.get(user) != layer for user in node.users if user.target is not _CHECK)
        ]
        if len(found) != 1:
            raise NotLayered(f"layer {layer} passes on {len(found)} tensors of {metadata}")
        return found[0]

    def _main(self) -> tuple[GraphModule, tuple[str, ...]]:
        graph, copies, inputs = Graph(), {}, []
        last = self._equal.needed - 1
        passed = [self._passed(metadata, last) for metadata in self._equal.carried]
        outside = [node for node in self._nodes if self._layer[node] is None]
        read = {source for node in outside for source in node.all_input_nodes}
        for node in outside:
            if node.op == "placeholder" and (node in read or node in self._shared):
                copies[node] = placeholder_like(node, graph)
                inputs.append(self._names[node.name])
        begun = False
        for node in self._nodes:
            if node is self._first:
                self._call_layers(graph, copies, passed)
                begun = True
            if self._layer[node] is None and node.op != "placeholder":
                if not all(source in copies for source in node.all_input_nodes):
                    raise NotLayered(f"{node.name} reads what a layer keeps to itself")
                if node.op == "output":
                    graph.output(torch.fx.node.map_arg(node.args[0], copies.__getitem__))
                else:
                    copy_into(graph, node, copies)
        assert begun
        return GraphModule(torch.nn.Module(), graph), tuple(inputs)

    def _call_layers(self, graph: Graph, copies: dict[Node, Node], passed: Sequence[Node]) -> None:
        first = {}
        for node in dict.fromkeys(s for n in self._nodes if self._layer[n] == 0 for s in n.all_input_nodes):
            inside = node.op == "placeholder" or self._layer[node] is not None
            if inside or (kind := _metadata(node)) not in self._equal.carried:
                continue
            if kind in first:
                raise NotLayered(f"the first layer is given two tensors of {kind}")
            first[kind] = node
        if len(first) != len(self._equal.carried) or not all(node in copies for node in self._shared):
            raise NotLayered("what is given to the first layer is not what the others are given")
        carried = [copies[first[metadata]] for metadata in self._equal.carried]
        call = graph.call_function(
            torch.ops.decodekit.layers.default, (carried, [copies[node] for node in self._shared])
        )
        call.meta["val"] = layers([node.meta["val"] for node in carried], [])
        for number, node in enumerate(passed):
            copies[node] = graph.call_function(operator.getitem, (call, number))
            copies[node].meta["val"] = call.meta["val"][number]


_CHECK = torch.ops.aten._assert_tensor_metadata.default


def _layer_of(node: Node, name: str) -> int | None:
    """The layer in which *node* was traced; None outside."""
    stack = node.meta.get("nn_module_stack") or {}
    for path, _ in stack.values():
        first, _, _ = str(path).removeprefix(f"{name}.").partition(".")
        if str(path).startswith(f"{name}.") and first.isdecimal():
            return int(first)
    return None


def _is_size(node: Node) -> bool:
    """Whether *node* is a number: the size of a dimension, or computed from such."""
    return node.op == "call_function" and not isinstance(node.meta.get("val"), Tensor | tuple | list)


def _metadata(node: Node) -> Metadata | None:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not all(isinstance(size, int) for size in value.shape):
        return None
    return metadata(value)


def placeholder_like(node: Node, graph: Graph) -> Node:
    """A placeholder in *graph* for the value of *node*."""
    made: Node = graph.placeholder(node.name)
    made.meta["val"] = node.meta["val"]
    return made


def copy_into(graph: Graph, node: Node, copies: dict[Node, Node]) -> None:
    """Copy *node* to the end of *graph*, over the *copies* of what it reads, and add it to them."""
    copies[node] = graph.node_copy(node, copies.__getitem__)
