"""Verification by rejection sampling."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.protocols import Draft, Sampler
from ...decoding.sampling import noise
from ...decoding.scores import Scores
from .distributions import (
    at_column,
    draft_distribution,
    drawn_apart,
    following,
    of_guesses,
    target_distribution,
)


@attrs.frozen(eq=False)
class RejectionSampling:
    """
    Keep a guess with probability min(1, p / q), and replace the first that falls by what q leaves of p.

    With p the softmax of the target's processed logits and q that of the draft's, a guess stands
    with probability Σ min(p, q), the most that one guess can, and what is kept has the distribution of p.
    Agreement accepts a little less and keeps plain decoding's very tokens; here the text
    depends on the draft and its lengths, its distribution does not. Needs a sampler that draws
    from the softmax.

    Guesses that are no draws, such as a prompt lookup's, are a q that is certain of them. A row
    without guesses is given the target's own choice, as in plain decoding.

    Leviathan, Kalman and Matias, 2023, `Fast Inference from Transformers via Speculative Decoding
    <https://arxiv.org/abs/2211.17192>`_, algorithm 1, whose letters these are; Chen et al., 2023,
    `Accelerating Large Language Model Decoding with Speculative Sampling
    <https://arxiv.org/abs/2302.01318>`_, algorithm 2.
    """

    compares_scores: ClassVar[bool] = True
    """Drafters are to give the logits that they drew from."""

    reads_target_tokens: ClassVar[bool] = False
    """Of a row with guesses, the target's own choices are not looked at."""

    def drafting(self, sampler: Sampler, start: Tensor) -> Sampler:
        """*sampler* with noise apart from everything else; ``ValueError`` if it draws from no softmax."""
        return drawn_apart(self, sampler, start)

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        """Guesses ``[batch, k]`` against scores: accepted and following, ``[batch]``."""
        k = draft.ids.shape[1]
        if k == 0:
            return torch.zeros_like(choices[:, 0]), choices[:, 0]
        p = target_distribution(scores)
        q = draft_distribution(draft, p.shape[-1])
        # 0 / 0 is no number, and no coin falls below it.
        ratio = of_guesses(p, draft) / of_guesses(q, draft)
        stands = noise.coin(
            window.random_stream[:, None], window.length[:, :1], noise.ACCEPT, torch.arange(k), ratio
        )
        accepted = stands.cumprod(dim=-1).sum(dim=-1)
        p, q = at_column(p, accepted), at_column(q, accepted)
        return accepted, following((p - q).clamp(min=0), p, draft, choices, window)
