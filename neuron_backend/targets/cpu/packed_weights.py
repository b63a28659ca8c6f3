"""
Weights in the order that oneDNN's kernels read them in.

A program is compiled over weights as a model has them, ``[out, in]``, and runs over either: the
kernel looks at what it is handed. Measured with two threads of a Xeon with AMX at the shapes of
SmolLM2-135M, forwards over plain weights against packed: bfloat16 1.37 times as long for one
column, 1.35 for five, 1.33 for 64.
"""

import json
from collections.abc import Callable, Mapping

import attrs
import torch
from torch import Tensor
from torch.export import ExportedProgram

from ...quantization.int8_activation_split import pack_weights
from ...quantization.quantized_matmul import PACKED

METADATA = "decodekit_packed"
"""Under which a program's metadata has :attr:`PackedNames`, as JSON."""


@attrs.frozen
class PackedNames:
    """Which constants a program is to be handed packed."""

    floats: tuple[str, ...]
    """Weights of linear layers."""

    integers: tuple[str, ...]
    """Those of 8-bit layers, by the names that they are traced under."""

    @classmethod
    def of(cls, exported: ExportedProgram) -> "PackedNames":
        """Look at a graph, its kernels chosen: what nothing else reads than a kernel that takes it packed."""
        signature = exported.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        found: dict[object, list[str]] = {kernel: [] for kernel in _KERNELS}
        for node in exported.graph_module.graph.find_nodes(op="placeholder"):
            for kernel, position in _KERNELS.items():
                readers = [user.target is kernel and user.args[position] is node for user in node.users]
                if node.name in names and readers and all(readers):
                    found[kernel].append(names[node.name])
        return cls(*map(tuple, found.values()))

    def to_json(self) -> str:
        """For a program's metadata."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "PackedNames":
        """What a program says; nothing, if it was compiled before there was anything to say."""
        known = json.loads(metadata.get(METADATA, "{}"))
        return cls(*(tuple(known.get(field.name, ())) for field in attrs.fields(cls)))


# Each kernel that takes weights packed, and which of its inputs they are.
_KERNELS = {
    torch.ops.mkldnn._linear_pointwise.default: 1,
    torch.ops.onednn.qlinear_pointwise.tensor: 3,
}


@attrs.frozen(eq=False)
class PackedWeights:
    """Packs each weight once, whatever the number of programs over it."""

    _rows: int
    """Of a verification, for which oneDNN chooses the order."""

    _packed: dict[tuple[int, torch.Size], Tensor] = attrs.field(factory=dict)

    def replace(self, tensors: Mapping[str, Tensor], names: PackedNames) -> dict[str, Tensor]:
        """
        *tensors*, by name, and those of *names* packed.

        Args:
            tensors: A step's weights, and the constants of its program.

            names: What is to be packed.
        """
        floats = {name: self._once(tensors[name], self._float) for name in names.floats if name in tensors}
        integers = {
            name: self._once(tensors[plain], pack_weights)
            for name in names.integers
            if (plain := f"{name.removesuffix(PACKED)}quantized") in tensors
        }
        return {**tensors, **floats, **integers}

    def _once(self, plain: Tensor, pack: Callable[[Tensor], Tensor]) -> Tensor:
        key = plain.data_ptr(), plain.shape
        if key not in self._packed:
            self._packed[key] = pack(plain)
        return self._packed[key]

    def _float(self, plain: Tensor) -> Tensor:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(plain, self._rows)
        return packed
