"""Tokens of a sampled probability."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ..history import History
from ..validation import a_whole_number, as_real, one_real
from .sample import Sample
from .stateful_sampler import StatefulRun

PEAK, SHARPNESS, WIDTH = 5.0, 10.0, 0.3
"""The logit of a token on the target, how fast it falls beside it, and in what unit of probability."""


@attrs.frozen(eq=False)
class AdaptiveP:
    """
    Draw tokens whose probability is near *target*, on average over the text.

    Each token's logit becomes a function of how far its probability lies from a target: 5 on it,
    falling first quadratically, then linearly. The sampled tokens' own probabilities are averaged,
    the last about 1 / (1 - *decay*) of them; as far as the average is above *target*, the next
    token's target lies below it, and the other way round, within 0 and 1.

    Forbidden tokens stay forbidden, and others may become likely that were not: put it behind a
    truncation such as a min-p of 0.05. It depends on past logits: each run begins an
    :class:`AdaptivePRun` of its own, and there is no speculation.

    llama.cpp, 2026, `implement adaptive-p sampler
    <https://github.com/ggml-org/llama.cpp/pull/17927>`_. There a weighted sum and a total weight
    are kept, which start so that the weight never changes: an average. A negative target, which
    is off there, is refused here: that is :class:`Sample`.
    """

    is_stateful: ClassVar[bool] = True

    target: float = attrs.field(
        converter=as_real, validator=one_real("in [0, 1]", lambda target: 0 <= target <= 1)
    )
    """The probability to keep to. Typically 0.3-0.8."""

    decay: float = attrs.field(
        default=0.9, converter=as_real, validator=one_real("in [0, 0.99]", lambda decay: 0 <= decay <= 0.99)
    )
    """How much of the average a new token leaves."""

    seed: int = attrs.field(default=0, validator=a_whole_number)
    """Any integer. Equal seeds, streams and logits give equal text."""

    def begin(self, batch: int) -> "AdaptivePRun":
        """The sampler of one run over *batch* rows."""
        return AdaptivePRun(batch, self)


@attrs.define(eq=False)
class AdaptivePRun(StatefulRun):
    """One run of :class:`AdaptiveP`."""

    settings: AdaptiveP

    average: Tensor = attrs.field(init=False)
    """``[batch]`` float64: of the probabilities of the tokens that each row chose."""

    @average.default
    def _on_target(self) -> Tensor:
        return torch.full((self.batch,), self.settings.target, dtype=torch.float64)

    def _sample(self, logits: Tensor, history: History, advancing: Tensor) -> Tensor:
        probs = logits.double().softmax(dim=-1)
        target = (2 * self.settings.target - self.average).clamp(0, 1)
        distance = (probs - target[:, None, None]).abs() / WIDTH
        adapted = PEAK - SHARPNESS * distance.square() / (1 + distance)
        sampled = Sample()(adapted.masked_fill(logits == -torch.inf, -torch.inf), history)
        probability = probs.gather(-1, sampled[..., None])[:, 0, 0]
        average = (1 - self.settings.decay) * probability + self.settings.decay * self.average
        # A row that has no token left ends here: it has nothing to learn.
        learning = advancing & probability.isfinite()
        self.average = torch.where(learning, average, self.average)
        return sampled[:, 0]
