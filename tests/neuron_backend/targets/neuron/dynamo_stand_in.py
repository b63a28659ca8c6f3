"""
Stand-in for TorchNeuron's backend of torch.compile, up to its own compiler, on a CPU.

Like TorchNeuron, it passes Dynamo's graph to AOTAutograd with ``keep_inference_input_mutations`` and
decompositions, and takes programs compiled before from a cache that torch.compiler.save_cache_artifacts()
saves. The graphs that would be compiled for the device are run by PyTorch. After TorchNeuron's sources
(neuron_dynamo_backend/backend.py, compile.py, cache_artifact.py and decompositions.py), without copying any;
tests/neuron_sources/torch_neuron compares it with a checkout.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from functorch.compile import make_boxed_func
from torch._decomp import get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager
from torch.fx import GraphModule, Node

KIND = "decodekit_stand_in"


def _refused(*arguments: Any, **options: Any) -> Any:
    raise NotImplementedError("TorchNeuron flattens the whole tensor of an index_put: take scatter")


def _kept(*arguments: Any, **options: Any) -> Any:
    return NotImplemented


TABLE: dict[Any, Callable[..., Any]] = {
    **get_decompositions([torch.ops.aten.embedding.default, torch.ops.aten.squeeze.dims]),
    torch.ops.aten.index_put.default: _refused,
    # Kept in the form that our lowering gives it, which the lint checks.
    torch.ops.aten.topk.default: _kept,
}
"""Of the operations in our programs, those that TorchNeuron's table replaces or names; and index_put."""

PERSISTENT: dict[str, bytes] = {}
"""The cache of compiled programs: key to content. Tests clear it to simulate a fresh machine."""


if KIND not in CacheArtifactFactory._artifact_types:

    @CacheArtifactFactory.register
    class StandInArtifact(CacheArtifact):
        """A compiled program."""

        def populate_cache(self) -> None:
            """Fill the cache, as a fresh process does."""
            PERSISTENT[self.key] = self.content

        @staticmethod
        def type() -> str:
            """Key of this kind of artifact."""
            return KIND


@attrs.define(eq=False)
class StandIn:
    """A backend for :func:`torch.compile` that records its graphs."""

    traced: list[GraphModule] = attrs.field(factory=list)
    """Graphs traced by Dynamo: more than one per program means a graph break."""

    graphs: list[GraphModule] = attrs.field(factory=list)
    """The same after AOTAutograd, as a compiler gets them."""

    compiled: list[str] = attrs.field(factory=list)
    """Keys of the programs that were not in the cache."""

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph traced by Dynamo."""
        self.traced.append(graph)
        compiler = aot_autograd(
            fw_compiler=self._compile, keep_inference_input_mutations=True, decompositions=TABLE
        )
        compiled: Callable[..., Any] = compiler(graph, inputs)
        return compiled

    def _compile(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        shapes = [tuple(value.shape) for value in inputs if isinstance(value, torch.Tensor)]
        key = hashlib.sha256(f"{graph.code} {shapes}".encode()).hexdigest()
        if key not in PERSISTENT:
            self.compiled.append(key)
            PERSISTENT[key] = b"a program"
        CacheArtifactManager.record_artifact(KIND, key, PERSISTENT[key])
        boxed: Callable[..., Any] = make_boxed_func(graph.forward)
        return boxed


def calls(graph: GraphModule, target: Any) -> list[Node]:
    """The nodes of *graph* that call *target*."""
    return list(graph.graph.find_nodes(op="call_function", target=target))
