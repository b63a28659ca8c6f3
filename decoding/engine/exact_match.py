"""Verification by agreement."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ..history import History
from ..protocols import Draft, Sampler
from ..scores import Scores


@attrs.frozen(eq=False)
class ExactMatch:
    """
    Keep the longest prefix on which the draft agrees with the target's own choices.

    Sampling is pure, so the target's choice in a column is the one that plain decoding makes
    there, as long as the column's prefix holds accepted tokens only; up to and including the
    first mismatch it does. Greedy and sampling are the same line, and the output is plain
    decoding's, token for token, whatever the draft.

    Sharing the noise of a position between both sides is Gumbel coupling (Daliri, Musco and
    Suresh, 2024, `Coupling without Communication and Drafter-Invariant Speculative Decoding
    <https://arxiv.org/abs/2408.07978>`_).
    """

    takes_trees: ClassVar[bool] = True
    """The branch that the target's choices take is all that agrees."""

    def drafting(self, sampler: Sampler, start: Tensor) -> Sampler:
        """The target's sampler itself: both sides are to meet the same noise."""
        return sampler

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        """Guesses ``[batch, k]`` against choices ``[batch, k + 1]``: accepted and following, ``[batch]``."""
        if not draft.ids.shape[1]:
            return torch.zeros(len(choices), dtype=torch.int64), choices[:, 0]
        agree = (draft.ids == choices[:, :-1]) & (draft.ids >= 0)
        accepted = agree.cumprod(dim=-1).sum(dim=-1)
        return accepted, choices.gather(-1, accepted[:, None]).squeeze(-1)
