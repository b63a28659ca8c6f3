"""Rejection sampling (speculative sampling)."""

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
    next_token,
    target_distribution,
    token_probabilities,
)
from .independent_noise import with_independent_noise


@attrs.frozen(eq=False)
class RejectionSampling:
    """
    Accept a token with probability min(1, p / q); resample the first rejected one from max(0, p - q).

    With p the softmax of the target's processed logits and q that of the draft's, a draft token is
    accepted with probability Σ min(p, q), the maximum for one token, and the output has the
    distribution p. Exact match accepts slightly less and reproduces plain decoding token for token;
    here the text depends on the draft and its lengths, its distribution does not. Requires a
    sampler that draws from the softmax.

    For draft tokens that were not sampled, such as a prompt lookup's, q is a point mass. A row
    without a draft gets the target's sampled token, as in plain decoding.

    Leviathan, Kalman and Matias, 2023, `Fast Inference from Transformers via Speculative Decoding
    <https://arxiv.org/abs/2211.17192>`_, algorithm 1, whose letters these are; Chen et al., 2023,
    `Accelerating Large Language Model Decoding with Speculative Sampling
    <https://arxiv.org/abs/2302.01318>`_, algorithm 2.
    """

    compares_scores: ClassVar[bool] = True
    """Drafters must return the logits they sampled from."""

    reads_target_tokens: ClassVar[bool] = False
    """The target's sampled tokens are not used in rows with a draft."""

    def drafting(self, sampler: Sampler, start: Tensor) -> Sampler:
        """*sampler* with independent noise; ``ValueError`` unless it draws from the softmax."""
        return with_independent_noise(self, sampler, start)

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        """Verify draft tokens ``[batch, k]``: number accepted and next token, ``[batch]`` each."""
        k = draft.ids.shape[1]
        if k == 0:
            return torch.zeros_like(choices[:, 0]), choices[:, 0]
        p = target_distribution(scores)
        q = draft_distribution(draft, p.shape[-1])
        # 0 / 0 is NaN: always rejected.
        ratio = token_probabilities(p, draft) / token_probabilities(q, draft)
        accept = noise.coin(
            window.random_stream[:, None], window.length[:, :1], noise.ACCEPT, torch.arange(k), ratio
        )
        accepted = accept.cumprod(dim=-1).sum(dim=-1)
        p, q = at_column(p, accepted), at_column(q, accepted)
        return accepted, next_token((p - q).clamp(min=0), p, draft, choices, window)
