"""Relative probabilities and entropy, independent of the order of the vocabulary."""

from torch import Tensor

from .exact_sum import exact_sum
from .ranking import below_best


def relative(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """
    Probabilities relative to the most likely token.

    Args:
        logits: ``[..., n]``.

    Returns:
        *gaps* ``[..., n]``: each logit minus the largest. *weights* ``[..., n]``: exp(gaps), 1 for
        the most likely token and 0 for masked ones. *total* ``[..., 1]`` float64: their sum,
        independent of the order; 0 in a row that is all ``-inf``. A probability is weight / total.
    """
    gaps = below_best(logits)
    weights = gaps.exp()
    return gaps, weights, exact_sum(weights)


def entropy(gaps: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """
    The entropy of a distribution.

    Args:
        gaps: As returned by :func:`relative`, like the others.

        weights: ``[..., n]``.

        total: ``[..., 1]``.

    Returns:
        ``[..., 1]`` float64, in nats; NaN in a row that is all ``-inf``.
    """
    # 0 * -inf of a masked token would be NaN. At a gap of -1000 the weight is 0 in any precision.
    return total.log() - exact_sum(weights * gaps.clamp(min=-1000.0)) / total
