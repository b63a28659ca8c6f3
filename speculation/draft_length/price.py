"""The price of drafts."""

from itertools import pairwise

import attrs


@attrs.frozen
class Price:
    """Extra time of a step with drafts over a plain one, in steps of plain decoding."""

    expected: float
    """If every row drafts."""

    doubt: float = 0.0
    """By how much it may be less (:meth:`.step_seconds.StepSeconds.doubt`)."""

    by_share: tuple[tuple[float, float], ...] = ()
    """
    Shares of the rows that draft, ascending from 0 to 1, and what is expected then; lines lie between them.
    Empty where it is the same for any share.
    """

    def of(self, share: float) -> tuple[float, float]:
        """What is expected, and what it may be at least, if a *share* of the rows drafts."""
        expected = self.expected
        for (low, low_price), (high, high_price) in pairwise(self.by_share):
            if share <= high:
                expected = low_price + (share - low) / (high - low) * (high_price - low_price)
                break
        doubt = self.doubt * expected / self.expected if self.expected else 0.0
        return expected, expected - doubt
