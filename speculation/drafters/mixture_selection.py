"""Selection of a drafter per row, from statistics of past steps."""

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ...decoding.fork_safe_lock import fork_safe_lock
from .mixture_acceptance import AcceptanceCounts, PastDraft, expected_accepted
from .mixture_pace import Pace

Ints = NDArray[np.int64]
Kind = tuple[int, int]
"""Index of the drafter, and bit length of its evidence; 0 if it gives none."""

_PRIOR_RATE = 0.8
"""Prior acceptance rate of unseen kinds; high, so that they are tried."""


@attrs.define(eq=False)
class MixtureRow:
    """State of a row at its last draft."""

    tokens: Ints = attrs.field(factory=lambda: np.empty(0, dtype=np.int64))
    drafts: list[PastDraft] = attrs.field(factory=list)
    """Drafts of all drafters that proposed one, used or not."""

    acceptance: AcceptanceCounts = attrs.field(factory=AcceptanceCounts)
    drafted_at: float | None = None
    """End of drafting, in seconds of ``time.perf_counter``."""


@attrs.define(eq=False)
class DrafterSelector:
    """Statistics of past steps, over all rows and generators. A copy starts without them."""

    pace: Pace
    acceptance: AcceptanceCounts = attrs.field(factory=AcceptanceCounts)
    lock: threading.Lock = attrs.field(factory=fork_safe_lock)

    def __reduce__(self) -> tuple[Any, ...]:
        return DrafterSelector, (Pace(self.pace.costs),)

    def learn(self, rows: Sequence[MixtureRow], ids: Sequence[Ints], now: float) -> None:
        """Compare the drafts of *rows* with their tokens *ids* at time *now*, in seconds, and drop them."""
        self.acceptance.decay()
        rests = []
        for row, tokens in zip(rows, ids, strict=True):
            generated = tokens[len(row.tokens) :].tolist()
            row.acceptance.decay()
            if generated and row.drafted_at is not None:
                for draft in row.drafts:
                    right, wrong = draft.outcome(generated)
                    row.acceptance.learn(draft.kind, right, wrong)
                    self.acceptance.learn(draft.kind, right, wrong)
                self.pace.gained(len(generated))
                rests.append(now - row.drafted_at)
            # Copied, as the loop keeps writing into its history.
            row.tokens, row.drafts, row.drafted_at = tokens.copy(), [], None
        if rests:
            self.pace.rested(min(rests))

    def pick(
        self,
        rows: Sequence[MixtureRow],
        kinds: Sequence[dict[int, Kind]],
        budgets: Sequence[int],
        costs: list[float],
    ) -> list[int]:
        """
        Select a drafter for each of *rows*.

        Args:
            rows: Rows with a budget.

            kinds: Kinds of the available drafts in each row, by drafter.

            budgets: Maximum draft length of each row.

            costs: Cost of each drafter, in seconds or the unit of ``pace``.

        Returns:
            Index of the drafter of each row; -1 for none.
        """
        gains = np.zeros((len(rows), len(costs)))
        for at, (row, available, budget) in enumerate(zip(rows, kinds, budgets, strict=True)):
            for number, kind in available.items():
                overall = self.acceptance.rate(kind, _PRIOR_RATE)
                gains[at, number] = expected_accepted(row.acceptance.rate(kind, overall), budget)
        price = self.pace.price() * len(rows)
        picked = assign(gains, [price * cost for cost in costs])
        self.pace.spent(sum(costs[number] for number in {*picked} - {-1}))
        return picked


def assign(gains: NDArray[np.float64], prices: Sequence[float]) -> list[int]:
    """
    Assign a drafter to each row, maximising total gain minus the prices of the drafters used.

    Args:
        gains: Expected accepted tokens, ``[rows, drafters]``, >= 0.

        prices: Price of each drafter for any number of rows, in tokens, >= 0.

    Returns:
        Index of the drafter of each row, -1 where none gains. Ties: the first drafter, the smallest
        set.
    """
    free = [number for number, price in enumerate(prices) if price == 0]
    paid = [number for number, price in enumerate(prices) if price > 0]
    most, best = 0.0, [-1] * len(gains)
    for size in range(len(paid) + 1):
        for some in itertools.combinations(paid, size):
            used = sorted([*free, *some])
            among = gains[:, used]
            worth = among.max(axis=1, initial=0.0).sum() - sum(prices[number] for number in some)
            if worth > most:
                most = worth
                best = [used[row.argmax()] if row.max() > 0 else -1 for row in among]
    return best
