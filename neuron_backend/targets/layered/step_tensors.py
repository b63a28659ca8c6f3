"""Names of all tensors that a step reads or writes, and the layer that each belongs to."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import attrs
from torch import Tensor
from torch.export import ExportedProgram

from ...kv_cache.buffers import CacheBuffers
from ...models.fused_projections import FusedProjections
from ...step import Step, tensors_of
from .equal_layers import EqualLayers

INPUT = "input."
"""Prefix of the names of a step's inputs before the cache, which are numbered."""

IDS = f"{INPUT}0"
"""The name of a step's first input: the ids of its columns, of which negative ones are padding."""

STATE = "cache."
"""Prefix of the names of the cache's tensors, which are numbered."""


@attrs.frozen(eq=False)
class StepTensors:
    """The tensors of a step by name."""

    values: dict[str, Tensor]

    roles: dict[str, tuple[int, str]]
    """Layer and role of each tensor that one layer alone reads: the role is the same in equal layers."""

    slots: str
    """Name of the addresses that are attended to, whose number the span determines."""

    @classmethod
    def of(
        cls, step: Step, inputs: Sequence[Tensor], cache: CacheBuffers, equal: EqualLayers | None
    ) -> "StepTensors":
        """The tensors of *step* with example *inputs*, of which the last are the *cache*."""
        given = inputs[: -len(cache.tensors)]
        # Themselves: copies on a device are found by the object.
        weights = tensors_of(step)
        values = {**weights, **input_values(given), **state_values(cache)}
        roles = {} if equal is None else {**_states(cache), **_weights(step, weights, equal.name)}
        return cls(values, roles, f"{INPUT}{len(given) - 1}")

    @cached_property
    def names(self) -> dict[tuple[int, str], str]:
        """The name of each layer's tensor with each role."""
        return {place: name for name, place in self.roles.items()}

    def placeholders(self, exported: ExportedProgram) -> dict[str, str]:
        """The name of the tensor that each placeholder of the exported step stands for."""
        signature = exported.graph_signature
        given = sum(name.startswith(INPUT) for name in self.values)
        users = enumerate(signature.user_inputs)
        return {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
            **{str(name): f"{INPUT}{n}" if n < given else f"{STATE}{n - given}" for n, name in users},
        }


def input_values(inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """A step's inputs before the cache, by name."""
    return _numbered(INPUT, inputs)


def state_values(cache: CacheBuffers) -> dict[str, Tensor]:
    """The cache's tensors by name."""
    return _numbered(STATE, cache.tensors)


def _numbered(prefix: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{number}": tensor for number, tensor in enumerate(tensors)}


def _states(cache: CacheBuffers) -> dict[str, tuple[int, str]]:
    layers = len(cache.keys)
    return {
        f"{STATE}{number}": (number % layers, f"{STATE}{number // layers}")
        for number in range(len(cache.states))
    }


def _weights(step: Step, weights: Mapping[str, Tensor], layers: str) -> dict[str, tuple[int, str]]:
    """The roles of weights: their names in their layer, that of a fused projection at its first member."""
    paths = {module: path for path, module in step.named_modules()}
    fused = {
        f"{path}.layer": f"{paths[module.members[0]]}.fused"
        for module, path in paths.items()
        if isinstance(module, FusedProjections)
    }
    roles = {}
    for name in weights:
        path, _, tensor = name.rpartition(".")
        full = f"{fused.get(path, path)}.{tensor}"
        layer, _, role = full.removeprefix(f"{layers}.").partition(".")
        if full.startswith(f"{layers}.") and layer.isdecimal():
            roles[name] = (int(layer), role)
    return roles
