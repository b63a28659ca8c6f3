"""A choice as the graph that a traced program has behind its scores."""

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from ...decoding.protocols import DecoderShape
from ..fused.fused_step import FusedStep
from ..graphs.lowering import lower
from ..graphs.narrow_integers import narrow_integers


class _Choice(nn.Module):
    """As ``(logits, *given) -> chosen``."""

    def __init__(self, step: FusedStep):
        super().__init__()
        # Not a module of this one: the model is not to be exported.
        self._choose = step.choose

    def forward(self, logits: Tensor, *given: Tensor) -> Tensor:
        return self._choose(logits, given, logits.new_zeros(logits.shape[0], dtype=torch.int64))


def lower_choice(step: FusedStep, width: int, shape: DecoderShape) -> GraphModule:
    """
    The choice of *step*, in core operations and 32 bits, for tracing through XLA.

    Written down as it is for eager execution, it would reach XLA with numbers of Python in it, which
    are float64 there; here they are tensors, and they can be stored.

    Args:
        step: Whose choice.

        width: Of the forwards that it stands behind.

        shape: Of the decoder.

    Returns:
        From float32 logits and what :meth:`~..fused.fused_step.FusedStep.given` makes, integers as
        int32, to ids ``[batch, columns]`` int32.

    Raises:
        OverflowError: It computes with numbers that 32 bits do not hold.
    """
    logits = torch.zeros(shape.batch_size, step.scored(width), shape.vocab_size)
    graph = lower(_Choice(step), (logits, *step.neutral(width, shape.batch_size)))
    narrow_integers(graph)
    return graph
