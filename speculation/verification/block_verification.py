"""Verification of a block of guesses as a whole."""

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
class BlockVerification:
    """
    Keep the longest prefix of the guesses that stands by the probabilities of all of it together.

    What is kept has the distribution of the target, as with :class:`~.rejection_sampling.RejectionSampling`, and is
    expected to be at least as long, for every target, draft and number of guesses: a guess
    that is likelier under the target than under the draft makes up for the one before it. Of
    guesses that are certain it keeps as many as that does. Needs a sampler that draws from
    the softmax.

    Sun et al., 2024, `Block Verification Accelerates Speculative Decoding
    <https://arxiv.org/abs/2403.10444>`_, algorithm 2, whose letters these are. There the last
    prefix is a case of its own; here no guess follows it, q is 0, and it is none. Numbers are
    keyed by the round's start: what becomes of later guesses bears on how many are kept, and
    must not be met again by the round that is then at their position.
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
        share = _shares(of_guesses(p, draft), of_guesses(q, draft))
        residual = (share[..., None] * p - q).clamp(min=0)
        ends = p.sum(dim=-1) == 0
        r = torch.where(ends, share, residual.sum(dim=-1))[:, 1:]
        spare = 1 - share[:, 1:]
        h = torch.where(r + spare > 0, r / (r + spare), 1.0).masked_fill(draft.ids < 0, 0.0)
        stands = noise.coin(
            window.random_stream[:, None], window.length[:, :1], noise.ACCEPT, torch.arange(k), h
        )
        accepted = (stands * torch.arange(1, k + 1)).amax(dim=-1)
        left, distribution = at_column(residual, accepted), at_column(p, accepted)
        return accepted, following(left, distribution, draft, choices, window)


def _shares(p: Tensor, q: Tensor) -> Tensor:
    """P₀ ... P_k of guesses of probabilities *p* and *q*: ``[batch, k]`` to ``[batch, k + 1]``."""
    shares = [torch.ones_like(p[:, 0])]
    for ratio in torch.where(p > 0, p / q, 0.0).unbind(dim=-1):
        shares.append((shares[-1] * ratio).clamp(max=1.0))
    return torch.stack(shares, dim=-1)
