"""What both ways of tracing for Neuron give."""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from ...lint.hlo_lint import lint_hlo
from ...lint.rules import Finding
from ...models.unsupported import UnsupportedArchitecture

Run = Callable[..., Tensor]
"""What a step takes before the cache, int64 on the host, to logits there."""

RunAndSample = Callable[..., tuple[Tensor, Tensor]]
"""The same to the choice, on the host, and logits wherever they are."""


@attrs.frozen(eq=False)
class TracedPrograms:
    """What runs, by width."""

    plain: dict[int, Run]
    trees: dict[int, Run] = attrs.field(factory=dict)
    sampling: dict[int, RunAndSample] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class TracedDecoder:
    """A compiled decoder."""

    runs: TracedPrograms
    content: bytes
    """How it is stored."""

    weights: list[str]
    """The tensors that it has to be given when it is loaded, by name."""

    tensors: dict[str, Tensor] = attrs.field(factory=dict)
    """What of it no model has: constants of choices, by name, or inputs for when nothing is to be chosen."""


def to_device(tensor: Tensor) -> Tensor:
    """An input as a traced program takes it: integers and truth values as int32."""
    # The device has no int64 to speak of, and what compilers make of one changes from version to version.
    return (tensor if tensor.is_floating_point() else tensor.to(torch.int32)).contiguous()


def to_host(outputs: Any) -> Tensor:
    """Logits as a decoder gives them, the last of what a program does."""
    found: Tensor = outputs[-1] if isinstance(outputs, (list, tuple)) else outputs
    return found.cpu().float()


def lint_proto(proto: bytes, top_k: int) -> list[Finding]:
    """
    Look at the HLO in a serialized HloModuleProto.

    Args:
        proto: The message.

        top_k: How many calls of top-k it was made of. torch_neuronx has a custom call for them, the
            torch_xla below it sorts; whether their form is one that is known has been looked at.
    """
    # torch-neuronx 2.9 is built on it.
    import torch_xla.core.xla_builder as xb

    findings = lint_hlo(xb.get_computation_hlo(xb.computation_from_module_proto("graph", proto)))
    sorts = sum(finding.rule == "sort" for finding in findings)
    return [finding for finding in findings if finding.rule != "sort" or sorts != top_k]


def refuse(findings: list[Finding], architecture: str, graph: str) -> None:
    """
    Stop at what neuronx-cc is known to refuse.

    Raises:
        UnsupportedArchitecture: There is something.
    """
    if findings:
        listed = "; ".join(dict.fromkeys(map(str, findings)))
        raise UnsupportedArchitecture(
            architecture,
            f"neuronx-cc is known to refuse what {graph} holds: {listed}; "
            "TracedTarget(strict=False) asks it all the same",
        )
