"""Common parts of both ways of tracing for Neuron: programs, dtype conversion, lint of HLO."""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from ...lint.hlo_lint import lint_hlo
from ...lint.rules import Finding
from ...models.unsupported import UnsupportedArchitecture

Run = Callable[..., Tensor]
"""A step's inputs without the cache, int64 on the host, to logits on the host."""

RunAndSample = Callable[..., tuple[Tensor, Tensor]]
"""The same to sampled tokens on the host, and logits on any device."""


@attrs.frozen(eq=False)
class TracedPrograms:
    """Callables that run the programs, by width."""

    plain: dict[int, Run]
    trees: dict[int, Run] = attrs.field(factory=dict)
    sampling: dict[int, RunAndSample] = attrs.field(factory=dict)
    rows: dict[str, Run] = attrs.field(factory=dict)
    """Those of :meth:`~...row_forwards.RowForwards.row_steps`, by :func:`~...step.program_name`."""


@attrs.frozen(eq=False)
class TracedDecoder:
    """The traced and compiled programs of a decoder."""

    runs: TracedPrograms
    content: bytes
    """Content of the saved file."""

    weights: list[str]
    """Names of the weights that it takes when it is loaded."""

    tensors: dict[str, Tensor] = attrs.field(factory=dict)
    """Tensors that are not the model's: samplers' constants, by name, or sampling inputs to ignore."""


def to_device(tensor: Tensor) -> Tensor:
    """An input with the dtype of a traced program: integers and booleans as int32."""
    # Devices hardly support int64, and compilers treat it differently from version to version.
    return (tensor if tensor.is_floating_point() else tensor.to(torch.int32)).contiguous()


def to_host(outputs: Any) -> Tensor:
    """Logits, the last output of a program, as float32 on the host."""
    found: Tensor = outputs[-1] if isinstance(outputs, (list, tuple)) else outputs
    return found.cpu().float()


def lint_proto(proto: bytes, top_k: int) -> list[Finding]:
    """
    Lint the HLO in a serialized HloModuleProto.

    Args:
        proto: The message.

        top_k: Number of top-k calls in its graph, which was linted before. torch_neuronx has a custom
            call for them, while plain torch_xla sorts: as many sorts are allowed.
    """
    # Installed with torch-neuronx 2.9, which is built on it.
    import torch_xla.core.xla_builder as xb

    findings = lint_hlo(xb.get_computation_hlo(xb.computation_from_module_proto("graph", proto)))
    sorts = sum(finding.rule == "sort" for finding in findings)
    return [finding for finding in findings if finding.rule != "sort" or sorts != top_k]


def refuse(findings: list[Finding], architecture: str, graph: str) -> None:
    """
    Raise an error for *findings* of a lint, if there are any.

    Raises:
        UnsupportedArchitecture: There are findings.
    """
    if findings:
        listed = "; ".join(dict.fromkeys(map(str, findings)))
        raise UnsupportedArchitecture(
            architecture,
            f"neuronx-cc is known to refuse what {graph} holds: {listed}; "
            "TracedTarget(strict=False) asks it all the same",
        )
