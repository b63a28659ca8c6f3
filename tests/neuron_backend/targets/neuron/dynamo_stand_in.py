"""
What TorchNeuron's backend of torch.compile does before its own compiler sees a graph, on a CPU.

As it does, this hands Dynamo's graph to AOTAutograd with ``keep_inference_input_mutations``, and takes
from a cache that travels with torch.compiler.save_cache_artifacts() what was compiled before. What
would become a program for the device is run by PyTorch. Read in TorchNeuron's sources
(neuron_dynamo_backend/backend.py, compile.py and cache_artifact.py), of which nothing is here.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager
from torch.fx import GraphModule, Node

KIND = "decodekit_stand_in"

PERSISTENT: dict[str, bytes] = {}
"""The cache of compiled programs: key to content. A test that stands for a fresh machine clears it."""


if KIND not in CacheArtifactFactory._artifact_types:

    @CacheArtifactFactory.register
    class StandInArtifact(CacheArtifact):
        """A compiled program."""

        def populate_cache(self) -> None:
            """Into the cache, as a fresh process does."""
            PERSISTENT[self.key] = self.content

        @staticmethod
        def type() -> str:
            """By which it is found again."""
            return KIND


@attrs.define(eq=False)
class StandIn:
    """A backend for :func:`torch.compile`, and what it was given."""

    traced: list[GraphModule] = attrs.field(factory=list)
    """What Dynamo traced: more than one for a program means a graph break."""

    graphs: list[GraphModule] = attrs.field(factory=list)
    """What AOTAutograd made of them: what a compiler would be given."""

    compiled: list[str] = attrs.field(factory=list)
    """Keys of the programs that were not in the cache."""

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph of Dynamo's."""
        self.traced.append(graph)
        compiler = aot_autograd(fw_compiler=self._compile, keep_inference_input_mutations=True)
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
