"""What a table of beams asks of the search for one prompt's sequences."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from ...protocols import Finish
from .beam import Beam, Hypothesis


class PromptSearch(Protocol):
    """Decides which beams of one prompt go on."""

    @property
    def beams(self) -> Sequence[Beam]:
        """The beams that go on; at first the empty one, in the end none."""
        ...

    def extend(self, log_probs: Tensor, explain: Callable[[int], Finish]) -> list[int]:
        """
        Replace the beams by their best children.

        Args:
            log_probs: The processed log-probabilities of the tokens after each beam,
                ``[beams, vocab]``; ``-inf`` where a token is forbidden, never NaN.

            explain: Why the beam of that index has no possible token, if it has none.

        Returns:
            The index of each new beam's parent.
        """
        ...

    def hypotheses(self) -> list[Hypothesis]:
        """The sequences that have ended, best first."""
        ...
