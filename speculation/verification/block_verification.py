"""Block verification."""

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
class BlockVerification:
    """
    Accept the longest prefix of the draft by its joint probability.

    The output has the target's distribution, as with
    :class:`~.rejection_sampling.RejectionSampling`, and the expected number of accepted tokens is
    at least as high, for every target, draft and draft length: a token more probable under the
    target than under the draft compensates for the one before it. For point-mass drafts both accept
    equally many. Requires a sampler that draws from the softmax.

    Sun et al., 2024, `Block Verification Accelerates Speculative Decoding
    <https://arxiv.org/abs/2403.10444>`_, algorithm 2, whose letters these are. There the whole
    draft is a special case; here q is 0 after it, which needs none. Noise is keyed by the step's
    start position: the coins of later draft tokens affect how many are accepted, and must not be
    reused by the next step at their positions.
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
        share = _shares(token_probabilities(p, draft), token_probabilities(q, draft))
        residual = (share[..., None] * p - q).clamp(min=0)
        ends = p.sum(dim=-1) == 0
        r = torch.where(ends, share, residual.sum(dim=-1))[:, 1:]
        spare = 1 - share[:, 1:]
        h = torch.where(r + spare > 0, r / (r + spare), 1.0).masked_fill(draft.ids < 0, 0.0)
        accept = noise.coin(
            window.random_stream[:, None], window.length[:, :1], noise.ACCEPT, torch.arange(k), h
        )
        accepted = (accept * torch.arange(1, k + 1)).amax(dim=-1)
        left, distribution = at_column(residual, accepted), at_column(p, accepted)
        return accepted, next_token(left, distribution, draft, choices, window)


def _shares(p: Tensor, q: Tensor) -> Tensor:
    """P₀ ... P_k from the draft tokens' probabilities *p* and *q*: ``[batch, k]`` to ``[batch, k + 1]``."""
    shares = [torch.ones_like(p[:, 0])]
    for ratio in torch.where(p > 0, p / q, 0.0).unbind(dim=-1):
        shares.append((shares[-1] * ratio).clamp(max=1.0))
    return torch.stack(shares, dim=-1)
