"""Always the likeliest token."""

import attrs
from torch import Tensor

from .history import History


@attrs.frozen(eq=False)
class Greedy:
    """
    Choose the token with the highest score; among equals, the lowest id.

    This is temperature 0. Scaling the logits has no bearing on it, and neither has a seed.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``."""
        return logits.argmax(dim=-1)
