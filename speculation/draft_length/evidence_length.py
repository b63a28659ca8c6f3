"""Draft length by the drafter's evidence, with bounded loss."""

from collections.abc import Iterator, Sequence

import attrs

from ...decoding.protocols import SpeculationStep
from .evidence_rates import EvidenceRates
from .price import Price

ALLOWANCE = 1.4
"""What drafts may lose at first, in steps of plain decoding: 2 % of 64 tokens."""

SHARE = 0.003
"""What each step adds to it."""

_CAUTION = 1.25
"""How many times its price a draft must promise while the balance is the first one."""

_MOST_GAINS = 4
"""Limit of the balance that gains fill, in allowances."""

_LONGEST_PAUSE = 3
"""Limit of the steps without evidence after a step with it."""

_GROWTH = 1
"""Expected growth of the evidence in a step without a draft."""

_LEAST_BALANCE = 1e-3
"""Bounds what a draft must promise where nothing is left."""


@attrs.frozen
class _Drafts:
    """Drafts of one length in some rows."""

    speed: float
    """Expected tokens of a step at the lowest possible price, in those of plain decoding."""

    length: int
    rows: tuple[int, ...]


@attrs.define(eq=False)
class EvidenceLength:
    """
    Draft length of drafters that give evidence, chosen by expected gains and prices.

    One length is chosen, for the rows that are expected to gain most from it. How many is chosen too, since
    the tokens of further rows may cost more than they gain.

    The balance, in steps of plain decoding, starts with :data:`ALLOWANCE`; each step adds :data:`SHARE` and
    its accepted draft tokens a row, and takes the price of its drafts. A length is chosen only if the balance
    pays its price, even if nothing is accepted. So *n* steps lose at most ``ALLOWANCE + n * SHARE`` against
    plain decoding, at the expected prices (a width's first use may cost more, as its price is in doubt).
    After gains up to four allowances may be lost again.

    A draft must also promise its price times ``1.25 * ALLOWANCE / balance``: the less is left, the stronger
    the evidence that it is kept for. Of these lengths the one of the most tokens a second is chosen, at the
    lowest possible prices: so a length whose price is in doubt is tried.

    Asking takes the host a few percent of a step, and most answers make no draft. So evidence is not asked
    for in up to three steps that, at today's balance, would make none if that of the two strongest rows grew
    by one a step. That of a match whose occurrences go on alike grows by two: the drafts that begin late so
    cost less than asking more often (forty texts of SmolLM2-135M at the times of two AMD EPYC).

    Where the drafter tells the first token of a draft that is not made, its acceptance is learned for free.
    """

    memory: float
    """As in :class:`~.evidence_rates.EvidenceRates`."""

    balance: float = attrs.field(default=ALLOWANCE, init=False)
    """What drafts may still lose."""

    _rates: EvidenceRates = attrs.field(init=False)

    _pause: int = attrs.field(default=0, init=False)
    """Remaining steps without evidence."""

    _prices: Sequence[Price] = attrs.field(default=(Price(0.0),), init=False)
    """Those of the newest choice."""

    def __attrs_post_init__(self) -> None:
        """Start from the prior."""
        self._rates = EvidenceRates(self.memory)

    def wants_evidence(self) -> bool:
        """Whether to ask for evidence in the next step."""
        if not self._pause:
            return True
        self._pause -= 1
        self.balance += SHARE
        return False

    def choose(self, evidence: Sequence[int], prices: Sequence[Price]) -> list[int]:
        """
        The draft length of each row in the next step.

        Args:
            evidence: By row; 0 where there is no draft.

            prices: By draft length, from 0.
        """
        self._prices, lengths = prices, [0] * len(evidence)
        best = max(self._worthwhile(evidence), key=lambda drafts: drafts.speed, default=None)
        if best is not None:
            for row in best.rows:
                lengths[row] = best.length
        return lengths

    def _worthwhile(self, evidence: Sequence[int]) -> Iterator[_Drafts]:
        """The drafts that may be made, and are expected to be faster than none."""
        prices, rows = self._prices, len(evidence)
        caution = _CAUTION * ALLOWANCE / max(self.balance, _LEAST_BALANCE)
        gains = {each: self._rates.accepted(each, len(prices) - 1) for each in set(evidence)}
        drafting = [row for row, each in enumerate(evidence) if each]
        for length in range(1, len(prices)):
            by_gain, gain = sorted(drafting, key=lambda row: -gains[evidence[row]][length]), 0.0
            for count, row in enumerate(by_gain, 1):
                gain += gains[evidence[row]][length] / rows
                expected, least = prices[length].of(count / rows)
                # Of a price in doubt, less than plain decoding may be expected.
                if least <= self.balance and gain >= caution * least and gain > expected:
                    yield _Drafts((1 + gain) / (1 + least), length, tuple(by_gain[:count]))

    def learn(self, outcome: SpeculationStep, prices: Sequence[Price] | None = None) -> None:
        """
        Account for a step at the price that was expected, or the lower one that it proved to have.

        Args:
            outcome: Of the step.

            prices: By draft length, after the step's times were learned; None for those of the choice.
        """
        self.balance += SHARE
        self._rates.learn(outcome)
        if not outcome.allowed:
            self._pause = self._steps_without_drafts(outcome.evidence or ())
        else:
            self._pause = 0
            rows, length = len(outcome.drafted), max(outcome.drafted)
            share = sum(outcome.drafted) / (rows * length) if length else 0.0
            price = min(each[length].of(share)[0] for each in (self._prices, prices or self._prices))
            self.balance += sum(outcome.accepted) / rows - price
        # A full account pays for the shortest draft.
        full = max([_MOST_GAINS * ALLOWANCE, *(price.expected for price in self._prices[1:2])])
        self.balance = min(self.balance, full)

    def _steps_without_drafts(self, evidence: Sequence[int]) -> int:
        """How many of the next steps would make no draft, if evidence grew by :data:`_GROWTH` in each."""
        ordered = sorted(evidence)
        for steps in range(_LONGEST_PAUSE):
            grown = (each + _GROWTH * (steps + 1) for each in ordered[-2:])
            if any(self._worthwhile([*ordered[:-2], *grown])):
                return steps
        return _LONGEST_PAUSE
