"""The stochastic beams of one prompt."""

import math
from collections.abc import Callable

import attrs
import numpy as np
import torch
from torch import Tensor

from ...protocols import Finish
from ...sampling import noise
from .beam import Beam, Hypothesis
from .beam_stop import PromptStop


@attrs.frozen(eq=False)
class _Sampled:
    beam: Beam
    perturbed: float
    """The perturbed log-probability, the largest of its children's; infinite for the empty beam: any."""

    finish: Finish | None = None
    """Why it ended; an ended one keeps its place until others are larger."""


@attrs.define(eq=False)
class SampledBeams:
    """
    A sample without replacement of one prompt's sequences.

    Kool, van Hoof and Welling, 2019, `Stochastic Beams and Where to Find Them
    <https://arxiv.org/abs/1903.06059>`_, algorithm 1; the conditional maximum as in appendix B.3.
    """

    num_beams: int
    stop: PromptStop
    stream: int
    """The prompt's random stream."""

    prompt: int
    """The prompt's tokens, from which positions are counted."""

    _sampled: list[_Sampled] = attrs.field(factory=lambda: [_Sampled(Beam.empty(), math.inf)], init=False)
    """By perturbed log-probability, the largest first."""

    @property
    def beams(self) -> list[Beam]:
        """Those that have not ended."""
        return [one.beam for one in self._sampled if one.finish is None]

    def extend(self, log_probs: Tensor, explain: Callable[[int], Finish]) -> list[int]:
        """See :class:`~.prompt_search.PromptSearch`."""
        going_on = [rank for rank, one in enumerate(self._sampled) if one.finish is None]
        scores = log_probs.double().log_softmax(dim=-1)
        perturbed, tokens = self._largest_children(scores, going_on)
        # Each with the index of its parent; -1 for one that has ended.
        found = [(-1, one) for one in self._sampled if one.finish is not None]
        for index, rank in enumerate(going_on):
            parent = self._sampled[rank]
            if bool((log_probs[index] == -torch.inf).all()):
                value = parent.perturbed if math.isfinite(parent.perturbed) else 0.0
                found.append((-1, _Sampled(parent.beam, value, explain(index))))
                continue
            for value, token in zip(perturbed[index].tolist(), tokens[index].tolist(), strict=True):
                if value > -math.inf:
                    child = parent.beam.extended(token, float(scores[index, token]))
                    found.append((index, _Sampled(child, value, self.stop(child))))
        found.sort(key=lambda one: -one[1].perturbed)
        self._sampled = [one for _, one in found[: self.num_beams]]
        return [index for index, one in found[: self.num_beams] if one.finish is None]

    def hypotheses(self) -> list[Hypothesis]:
        """At most *num_beams*, by perturbed log-probability; all distinct."""
        return [
            Hypothesis(one.beam, one.perturbed, one.finish) for one in self._sampled if one.finish is not None
        ]

    def _largest_children(self, scores: Tensor, ranks: list[int]) -> tuple[Tensor, Tensor]:
        """
        The children of each beam with the largest perturbed log-probabilities, whose maximum is the beam's.

        Args:
            scores: The tokens' log-probabilities, ``[beams, vocab]``.

            ranks: The rank of each beam among all, which keeps the noise of beams apart.

        Returns:
            Perturbed log-probabilities and tokens, ``[beams, n]``, *n* the number of beams or of tokens.
        """
        parents, vocab = [self._sampled[rank] for rank in ranks], scores.shape[-1]
        totals = torch.tensor([one.beam.total for one in parents], dtype=torch.float64)[:, None]
        gumbel = noise.gumbel(
            np.array([self.stream]),
            np.array([self.prompt + parents[0].beam.length]),
            noise.BEAM,
            np.array(ranks)[:, None] * vocab + np.arange(vocab),
        )
        # The condition on the maximum keeps the order, so it is computed for the largest alone.
        free, tokens = gumbel.add_(scores).add_(totals).topk(min(self.num_beams, vocab))
        if math.isinf(parents[0].perturbed):
            return free, tokens
        bound = torch.tensor([one.perturbed for one in parents], dtype=torch.float64)[:, None]
        v = bound - free + _log1mexp(free - free[:, :1])
        return bound - v.clamp(min=0.0) - (-v.abs()).exp().log1p(), tokens


def _log1mexp(x: Tensor) -> Tensor:
    """``log(1 - exp(x))`` for x <= 0 (Mächler, 2012)."""
    return torch.where(x > -0.693, (-x.expm1()).log(), (-x.exp()).log1p())
