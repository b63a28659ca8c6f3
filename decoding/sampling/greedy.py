"""Always the likeliest token."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ..history import History
from ..optional_protocols import has_short_cuts
from .candidates import Candidates
from .top_tokens import top2_margin, top_tokens


@has_short_cuts
@attrs.frozen(eq=False)
class Greedy:
    """
    Choose the token with the highest score; among equals, the lowest id.

    This is temperature 0. Scaling the logits has no bearing on it, and neither has a seed.
    """

    takes_argmax: ClassVar[bool] = True
    """What does not move the largest logit makes no difference here, and need not be run."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``."""
        # On the host numpy looks through them some ten times as fast.
        return torch.from_numpy(logits.numpy(force=True).argmax(axis=-1))

    def among(self, candidates: Candidates, history: History) -> Tensor:
        """What a call on all of the vocabulary chooses, from the tokens that are left of it."""
        best = candidates.logits.argmax(dim=-1, keepdim=True)
        return candidates.ids.gather(-1, best).squeeze(-1)

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """The *n* likeliest tokens ``[batch, width, n]``, first what a call chooses; *n* <= vocab."""
        return top_tokens(logits, n)

    def gap(self, logits: Tensor, history: History) -> Tensor:
        """
        How far each column's choice is ahead, ``[batch, width]`` float64: 0 among equals.

        It stands as long as no logit changes by half of that.
        """
        return top2_margin(logits.double())
