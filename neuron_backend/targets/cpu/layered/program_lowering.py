"""Lowering of a step to the calls of a program, with each kind of layer lowered once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ....artifacts.fingerprint import tensors_digest
from ....kv_cache.buffers import CacheBuffers
from ....lowering.export import without_known_warnings
from ....step import Step, TreeStep
from ...layered.equal_layers import EqualLayers, equal_layers
from ...layered.layer_graphs import LayeredGraph
from ...layered.layer_record import Metadata
from ...layered.layered_step import layered_step
from ...layered.step_tensors import IDS, StepTensors
from ..aoti import CONSTANTS, FINGERPRINT, loop_options, open_span
from ..graph_rewrites import rewrite_graph
from ..kernel_description import BIT_EXACT, SKIPS_PADDING
from ..kernel_library import Kernels
from ..kernel_operations import SHAPES
from ..traced_kernels import traced_kernels
from ..unproved_products import unproved_products
from .lowered_program import LoweredProgram
from .program_source import LayerCalls, ProgramCalls
from .recorded_calls import LoweredGraph, Recording, lower, with_agreed_ids


def lower_program(
    step: Step, cache: CacheBuffers, width: int, spans: Sequence[int], fingerprint: str, kernels: Kernels
) -> LoweredProgram:
    """
    Lower *step* for one width and every span.

    Arguments as of :func:`~..aoti.compile_package`.

    Raises:
        NotLayered: Some operation is computed by torch, not by loops or own kernels.
    """
    inputs = step.padding(width, cache, spans[0])
    with torch.no_grad(), without_known_warnings(), traced_kernels(step, kernels):
        equal = equal_layers(step, inputs, len(cache.states), SHAPES)
        layered = layered_step(step, inputs, cache, equal, open_span(step, inputs, cache, spans))
        graphs, tensors, constants = layered.graphs, layered.tensors, layered.constants
        for module in graphs.modules:
            rewrite_graph(module, kernels)
        addresses = [cache.addresses(span) for span in spans]
        calls, own = _recorded(graphs, tensors, constants, addresses, equal)
    # In a tree, slots of other branches lie between those of a column, whose weights add up in other groups.
    alike = not isinstance(step, TreeStep) and not any(map(unproved_products, graphs.modules))
    return LoweredProgram(
        calls,
        graphs.inputs,
        own,
        tuple(map(len, addresses)),
        {
            FINGERPRINT: fingerprint,
            CONSTANTS: tensors_digest(constants),
            BIT_EXACT: str(alike).lower(),
            SKIPS_PADDING: str(calls.reads_ids).lower(),
        },
        constants,
        [node for module in graphs.modules for node in module.graph.nodes if node.target is not _LAYERS],
        step.model.dtype,
    )


_LAYERS = torch.ops.decodekit.layers.default


def _recorded(
    graphs: LayeredGraph,
    tensors: StepTensors,
    constants: dict[str, Tensor],
    addresses: Sequence[Tensor],
    equal: EqualLayers | None,
) -> tuple[ProgramCalls, tuple[str, ...]]:
    """The calls for each span, and the names of the layers' own tensors."""
    # The same for all: their functions are compiled together.
    options = loop_options(*graphs.modules)
    main = lower(graphs.main, options)
    layers = {kind: lower(layer.module, options) for kind, layer in graphs.layers.items()}
    known = {name: tensor.detach() for name, tensor in tensors.values.items()}
    columns = tensors.values[IDS].numel()
    recordings: list[Recording] = []
    inside: dict[int, list[Recording]] = {kind: [] for kind in layers}
    for slots in addresses:
        values = {**known, **constants, tensors.slots: slots}
        recording, given = main.recorded([values[name] for name in graphs.inputs], columns)
        recordings.append(recording)
        for kind, lowered in layers.items():
            inside[kind].append(_recorded_layer(graphs, kind, lowered, given, tensors, columns))
    recordings = with_agreed_ids(recordings)
    inside = {kind: with_agreed_ids(each) for kind, each in inside.items()}
    ids = graphs.inputs.index(IDS)
    if equal is None:
        return ProgramCalls(tuple(recordings), ids=ids), ()
    first = len(graphs.inputs) + len(recordings[0].outputs)
    rows, own = _own_tensors(graphs, equal, tensors, first)
    order = list(layers)
    calls = ProgramCalls(
        tuple(recordings),
        tuple(LayerCalls(graphs.layers[kind].sources, tuple(inside[kind])) for kind in order),
        tuple(order.index(kind) for kind in equal.kinds),
        rows,
        tuple(map(_bytes, equal.carried)),
        ids,
    )
    return calls, own


def _recorded_layer(
    graphs: LayeredGraph,
    kind: int,
    lowered: LoweredGraph,
    given: Sequence[Sequence[Tensor]],
    tensors: StepTensors,
    columns: int,
) -> Recording:
    carried, shared = given
    values = []
    for source in graphs.layers[kind].sources:
        if source.kind == "own":
            values.append(tensors.values[tensors.names[kind, source.role]])
        else:
            values.append((carried if source.kind == "carried" else shared)[source.number])
    return lowered.recorded(values, columns)[0]


def _own_tensors(
    graphs: LayeredGraph, equal: EqualLayers, tensors: StepTensors, first: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Pointers of each layer's own tensors, counted from *first*, and their names."""
    own: list[str] = []
    rows = []
    for layer, kind in enumerate(equal.kinds):
        roles = [source.role for source in graphs.layers[kind].sources if source.kind == "own"]
        rows.append(tuple(first + len(own) + number for number in range(len(roles))))
        own += [tensors.names[layer, role] for role in roles]
    return tuple(rows), tuple(own)


def _bytes(metadata: Metadata) -> int:
    dtype, shape = metadata
    return torch.empty(shape, dtype=dtype, device="meta").nbytes
