"""Verification by exact match."""

from typing import ClassVar

import attrs
import numpy as np
import torch
from torch import Tensor

from ..history import History
from ..protocols import Draft, Sampler
from ..scores import Scores


@attrs.frozen(eq=False)
class ExactMatch:
    """
    Accept the longest prefix of the draft that equals the target's own tokens.

    Sampling is pure, so the target's token in a column is that of plain decoding as long as the
    column's prefix holds accepted tokens only, which is so up to and including the first mismatch.
    Greedy and random sampling need no distinction, and the output equals plain decoding's, token for
    token, whatever the draft.

    Using the same noise for draft and target at each position is Gumbel coupling (Daliri, Musco and
    Suresh, 2024, `Coupling without Communication and Drafter-Invariant Speculative Decoding
    <https://arxiv.org/abs/2408.07978>`_).
    """

    takes_trees: ClassVar[bool] = True
    """In a tree, only the branch of the target's own tokens can match."""

    def drafting(self, sampler: Sampler, start: Tensor) -> Sampler:
        """The target's sampler itself, so that both sides use the same noise."""
        return sampler

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        """Draft ``[batch, k]`` against choices ``[batch, k + 1]``: accepted and next token, ``[batch]``."""
        if not draft.ids.shape[1]:
            return torch.zeros(len(choices), dtype=torch.int64), choices[:, 0]
        # NumPy's operations on so few numbers take a third of the time of torch's.
        ids, own = draft.ids.numpy(), choices.numpy()
        agrees = np.logical_and.accumulate((ids == own[:, :-1]) & (ids >= 0), axis=1)
        accepted = agrees.sum(axis=1)
        following = own[np.arange(len(own)), accepted]
        return torch.from_numpy(accepted), torch.from_numpy(following)
