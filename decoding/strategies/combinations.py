"""How the logits of several decoders become one."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import attrs
from torch import Tensor

from ..temperature_divisor import finite_divisor
from ..validation import as_list, as_real, one_real

Combine: TypeAlias = Callable[[Sequence[Tensor]], Tensor]
"""Logits ``[rows, columns, vocab]`` of each decoder, which are not modified, to logits of the same shape."""


def _as_weights(value: Any) -> Any:
    weights = as_list(value)
    return weights if weights is None or not isinstance(weights, Sequence) else tuple(map(as_real, weights))


def _a_weight_each(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, tuple) or not all(isinstance(one, float) for one in value):
        raise TypeError(f"'weights' must be numbers, one for each decoder, or None: got {value!r}")
    if not value or not all(0 < one < math.inf for one in value):
        raise ValueError(f"'weights' must be > 0 and finite, one for each decoder: got {value!r}")


def _shares(weights: tuple[float, ...] | None, decoders: int) -> list[float]:
    """The *weights* with the sum 1; equal ones if there are none."""
    if weights is None:
        return [1 / decoders] * decoders
    if len(weights) != decoders:
        raise ValueError(f"'weights' must be one for each of {decoders} decoders: got {weights}")
    # Scaled first, since the sum of large ones is infinite.
    scaled = [weight / max(weights) for weight in weights]
    shares = [weight / sum(scaled) for weight in scaled]
    if not all(shares):
        raise ValueError(f"'weights' must not differ so much that a share of all is 0: got {weights}")
    return shares


@attrs.frozen(eq=False)
class MeanLogProbs:
    """
    The weighted mean of the log-probabilities: a product of experts.

    Hinton, 2002, `Training Products of Experts by Minimizing Contrastive Divergence
    <https://doi.org/10.1162/089976602760128018>`_. A token needs every decoder's consent.

    >>> import torch
    >>> half, sure = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log()
    >>> MeanLogProbs()([half, sure]).softmax(dim=-1)
    tensor([0.7500, 0.2500])
    """

    by_column: ClassVar[bool] = True
    weights: tuple[float, ...] | None = attrs.field(
        default=None, converter=_as_weights, validator=_a_weight_each
    )
    """One for each decoder, > 0; only their ratios count. None: equal ones."""

    def __call__(self, logits: Sequence[Tensor]) -> Tensor:
        """The mean; not normalised."""
        shares = _shares(self.weights, len(logits))
        mean = logits[0].log_softmax(dim=-1) * shares[0]
        for one, share in zip(logits[1:], shares[1:], strict=True):
            mean = mean + one.log_softmax(dim=-1) * share
        return mean


@attrs.frozen(eq=False)
class MeanProbs:
    """
    The logarithm of the weighted mean of the probabilities: a mixture.

    A token needs the consent of one decoder.

    >>> import torch
    >>> half, sure = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log()
    >>> MeanProbs()([half, sure]).exp()
    tensor([0.7000, 0.3000])
    """

    by_column: ClassVar[bool] = True
    weights: tuple[float, ...] | None = attrs.field(
        default=None, converter=_as_weights, validator=_a_weight_each
    )
    """One for each decoder, > 0; only their ratios count. None: equal ones."""

    def __call__(self, logits: Sequence[Tensor]) -> Tensor:
        """The mean; normalised."""
        shares = _shares(self.weights, len(logits))
        parts = [one.log_softmax(dim=-1) + math.log(share) for one, share in zip(logits, shares, strict=True)]
        largest = parts[0]
        for part in parts[1:]:
            largest = largest.maximum(part)
        # Where all have -inf; and not logaddexp, whose last bits depend on the place in memory.
        largest = largest.masked_fill(largest == -math.inf, 0.0)
        total = (parts[0] - largest).exp()
        for part in parts[1:]:
            total = total + (part - largest).exp()
        return total.log() + largest


@attrs.frozen(eq=False)
class Contrast:
    """
    What the first decoder, the expert, finds likelier than the second, the amateur.

    Li et al., 2023, `Contrastive Decoding: Open-ended Text Generation as Optimization
    <https://arxiv.org/abs/2210.15097>`_, equations 2 to 4. With ``expert.early_exit(n)`` as the amateur, DoLa
    with one fixed layer (Chuang et al., 2024, `DoLa: Decoding by Contrasting Layers Improves Factuality in
    Large Language Models <https://arxiv.org/abs/2309.03883>`_, equations 2 and 5).

    Of three tokens, the last is implausible to the expert:

    >>> import torch
    >>> expert, amateur = torch.tensor([0.6, 0.39, 0.01]).log(), torch.tensor([0.8, 0.199, 0.001]).log()
    >>> Contrast(alpha=0.1)([expert, amateur])
    tensor([-0.2877,  0.6728,    -inf])
    """

    by_column: ClassVar[bool] = True
    alpha: float = attrs.field(
        default=0.1, converter=as_real, validator=one_real(">= 0 and <= 1", lambda value: 0 <= value <= 1)
    )
    """The expert's probability of a token must be this share of its largest; 0 allows all, 1 the largest."""

    temperature: float = attrs.field(
        default=1.0, converter=as_real, validator=one_real("> 0 and finite", lambda x: 0 < x < math.inf)
    )
    """Of the amateur; below 1 it is surer of itself. Neutral: 1. Typically 0.5 to 1.5."""

    def __call__(self, logits: Sequence[Tensor]) -> Tensor:
        """The difference of the log-probabilities, ``-inf`` where the expert finds a token implausible."""
        if len(logits) != 2:
            raise ValueError(f"a contrast takes 2 decoders, an expert and an amateur: got {len(logits)}")
        expert, amateur = (
            logits[0].log_softmax(dim=-1),
            (logits[1] / finite_divisor(self.temperature)).log_softmax(dim=-1),
        )
        least = expert.amax(dim=-1, keepdim=True) + (math.log(self.alpha) if self.alpha else -math.inf)
        # Not >=, so that NaN stays.
        implausible = (expert < least) | (expert == -math.inf)
        return (expert - amateur).masked_fill(implausible, -math.inf)
