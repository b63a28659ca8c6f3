"""Adaptive-p: sampling near a target probability."""

from typing import ClassVar

import attrs
import torch
from attrs import validators
from torch import Tensor

from ..history import History
from ..validation import a_whole_number, as_real, as_whole, one_real
from .sample import Sample
from .sample_short_cuts import SampleShortCuts
from .stateful_sampler import StatefulRun

PEAK, SHARPNESS, WIDTH = 5.0, 10.0, 0.3
"""The logit of a token at the target, its rate of decay, and the unit of distance in probability."""

_draw = SampleShortCuts(Sample()).sample


@attrs.frozen(eq=False)
class AdaptiveP:
    """
    Sample tokens whose probability is near *target*, on average over the text.

    Each token's logit becomes a function of its probability's distance from a target: 5 at the
    target, falling first quadratically, then linearly. The probabilities of about the last
    1 / (1 - *decay*) sampled tokens are averaged; the next token's target lies as far below *target*
    as the average lies above it, and vice versa, within 0 and 1.

    Forbidden tokens stay forbidden, but improbable ones may become probable: use it after a
    truncation such as a min-p of 0.05. It depends on past logits: each run begins an
    :class:`AdaptivePRun` of its own, and speculation is refused.

    llama.cpp, 2026, `implement adaptive-p sampler
    <https://github.com/ggml-org/llama.cpp/pull/17927>`_. Its weighted sum and total weight start such
    that the weight is constant, so they are an average. A negative target, which disables it there, is
    refused here: use :class:`Sample`.
    """

    is_stateful: ClassVar[bool] = True

    target: float = attrs.field(
        converter=as_real, validator=one_real("in [0, 1]", lambda target: 0 <= target <= 1)
    )
    """The target probability. Typically 0.3-0.8."""

    decay: float = attrs.field(
        default=0.9, converter=as_real, validator=one_real("in [0, 0.99]", lambda decay: 0 <= decay <= 0.99)
    )
    """The weight of the old average at each new token."""

    seed: int = attrs.field(default=0, converter=as_whole, validator=a_whole_number)
    """Any integer. Equal seeds, streams and logits give equal text."""

    def begin(self, batch: int) -> "AdaptivePRun":
        """The sampler of one run over *batch* rows."""
        return AdaptivePRun(batch, self)


@attrs.define(eq=False)
class AdaptivePRun(StatefulRun):
    """One run of :class:`AdaptiveP`."""

    settings: AdaptiveP = attrs.field(validator=validators.instance_of(AdaptiveP))

    average: Tensor = attrs.field(init=False)
    """``[batch]`` float64: the average probability of each row's sampled tokens."""

    @average.default
    def _on_target(self) -> Tensor:
        # attrs validates after the defaults, which need valid fields.
        attrs.validate(self)
        return torch.full((self.batch,), self.settings.target, dtype=torch.float64)

    def _sample(self, logits: Tensor, history: History, advancing: Tensor) -> Tensor:
        probs = logits.double().softmax(dim=-1)
        target = (2 * self.settings.target - self.average).clamp(0, 1)
        distance = (probs - target[:, None, None]).abs() / WIDTH
        adapted = PEAK - SHARPNESS * distance.square() / (1 + distance)
        sampled = _draw(adapted.masked_fill(logits == -torch.inf, -torch.inf), history)
        probability = probs.gather(-1, sampled[..., None])[:, 0, 0]
        average = (1 - self.settings.decay) * probability + self.settings.decay * self.average
        # A row without a possible token ends here and keeps its state.
        updating = advancing & probability.isfinite()
        self.average = torch.where(updating, average, self.average)
        return sampled[:, 0]
