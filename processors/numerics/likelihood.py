"""How likely tokens are, in numbers that do not depend on the order of the vocabulary."""

from torch import Tensor

from .exact_sum import exact_sum
from .ranking import below_best


def relative(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """
    A distribution, seen from its likeliest token.

    Args:
        logits: ``[..., n]``.

    Returns:
        The *gaps*, ``[..., n]``: each logit less the largest. The *weights*, ``[..., n]``: how
        likely each token is next to the likeliest, 1 for that one and 0 for a masked one. Their
        *total*, ``[..., 1]`` float64, the same in any order; 0 in a row that is all ``-inf``.
        A probability is a weight over the total.
    """
    gaps = below_best(logits)
    weights = gaps.exp()
    return gaps, weights, exact_sum(weights)


def entropy(gaps: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """
    The entropy of a distribution.

    Args:
        gaps: As :func:`relative` gives them, like the others.

        weights: ``[..., n]``.

        total: ``[..., 1]``.

    Returns:
        ``[..., 1]`` float64, in nats; NaN in a row that is all ``-inf``.
    """
    # A masked token's 0 times -inf would be NaN. At -1000 a weight is 0 in any precision.
    return total.log() - exact_sum(weights * gaps.clamp(min=-1000.0)) / total
