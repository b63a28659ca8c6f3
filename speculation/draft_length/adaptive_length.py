"""A draft length that pays."""

import threading
from typing import Any

import attrs
from attrs import validators

from ...decoding.protocols import Decoder, SpeculationStep
from ...decoding.validation import a_whole_number, as_real, one_real
from .adaptive_rates import GuessRates
from .adaptive_seconds import RoundSeconds

_FIRST_WAIT, _LAST_WAIT = 4, 128
"""Rounds without a draft before one is tried again: at first, and after many vain tries."""


@attrs.define(eq=False)
class AdaptiveLength:
    """
    Guess as far ahead as gives the most tokens per second, and not at all where nothing is gained.

    A draft of *k* guesses gives 1 + a₁ + a₁a₂ + ... + a₁⋯aₖ tokens, if its *i*-th guess stands with
    probability aᵢ where those before it stood. It costs the draft, and a forward of the width
    that k + 1 columns need. Both are learned from past rounds, what a width costs beforehand from
    idle forwards, and the *k* of the best ratio is taken. That is the speed-up of Leviathan,
    Kalman and Matias, 2023, `Fast Inference from Transformers via Speculative Decoding
    <https://arxiv.org/abs/2211.17192>`_, theorem 3.8, with an acceptance for each position and
    with measured costs.

    Where the best *k* is 0, plain decoding, the next best is tried now and then, to see whether
    drafts have become better: after 4 rounds, and after twice as many with each try that was
    in vain, up to 128.

    What this may lose against plain decoding is bounded. A length is not taken while it could
    lose more than is left of *allowance*, which only what speculation gains fills up again. What a
    try could lose must have been saved up from *share* of the time. (The draft's reading of a
    first prompt comes on top.)

    What it learned stays from run to run; a copy starts anew. Share one between generators of
    the same target and drafter; another pair deserves one of its own. Under
    :class:`~decodekit.decoding.engine.exact_match.ExactMatch` the length changes no text; under other
    verifications a sampled text depends on it, and so on the clock, though not its distribution.
    """

    most: int = attrs.field(default=8, validator=[a_whole_number, validators.ge(0)])
    """The longest draft. The decoder has to score one column more."""

    expected: float = attrs.field(
        default=0.7, converter=as_real, validator=one_real(">= 0 and <= 1", lambda value: 0 <= value <= 1)
    )
    """The share of guesses that is taken to stand before any was seen."""

    memory: float = attrs.field(
        default=24.0, converter=as_real, validator=one_real(">= 1", lambda value: value >= 1)
    )
    """After how many rounds what was seen weighs 1/e. Less follows a changing text sooner; 10 to 50."""

    allowance: float = attrs.field(
        default=8.0, converter=as_real, validator=one_real("> 0", lambda value: value > 0)
    )
    """How much may be lost to wrong lengths, in rounds of plain decoding."""

    share: float = attrs.field(
        default=0.005, converter=as_real, validator=one_real(">= 0 and < 1", lambda value: 0 <= value < 1)
    )
    """The share of the time that may be lost to tries, besides a quarter of *allowance*."""

    _rates: GuessRates = attrs.field(init=False, repr=False)
    _seconds: RoundSeconds = attrs.field(factory=RoundSeconds, init=False, repr=False)

    _stake: float = attrs.field(init=False, repr=False)
    """What is left of the allowance."""

    _savings: float = attrs.field(init=False, repr=False)
    """What is there for tries."""

    _gap: int = attrs.field(default=0, init=False, repr=False)
    """Rounds since the last that had a draft."""

    _wait: int = attrs.field(default=_FIRST_WAIT, init=False, repr=False)
    """How long that is to be before a try."""

    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Know nothing yet."""
        self._rates = GuessRates(self.most, self.expected, self.memory)
        self._stake, self._savings = self.allowance, self.allowance / 4

    def __reduce__(self) -> tuple[Any, ...]:
        # A lock cannot be copied, and what was learned is another machine's, or another pair's.
        return type(self), (self.most, self.expected, self.memory, self.allowance, self.share)

    def prepare(self, decoder: Decoder, exact_width: bool = False) -> None:
        """
        Time the target's forwards; a generator calls this when it is built.

        Args:
            decoder: The target. What its cache holds stays.

            exact_width: Whether every forward is of the widest width that scores all columns.
        """
        with self._lock:
            self._seconds.prepare(decoder, exact_width)

    def __call__(self, rows: int) -> int:
        """How many tokens ahead each of *rows* rows may be guessed in the round that begins."""
        with self._lock:
            if 0 < self._gap < self._wait:
                # Nothing was heard of drafts since plain decoding was found best.
                return 0
            speeds = self._tokens_per_second(rows)
            best = max(filter(self._affordable, range(self.most + 1)), key=speeds.__getitem__)
            if best or not self.most or self._gap < self._wait:
                return best
            attempt = max(range(1, self.most + 1), key=speeds.__getitem__)
            return attempt if self._price(attempt) <= self._savings else 0

    def learn(self, outcome: SpeculationStep) -> None:
        """Hear what a round came to."""
        with self._lock:
            self._seconds.learn(outcome, self._gap)
            self._settle(outcome)
            if outcome.allowed:
                if self._gap:
                    self._rates.lapse()
                self._rates.learn(outcome)
                self._wait = self._next_wait(outcome)
            self._gap = 0 if outcome.allowed else self._gap + 1

    def tokens_per_second(self, rows: int = 1) -> list[float]:
        """What is expected of 0, 1, ..., *most* guesses in each of *rows* rows, all rows together."""
        with self._lock:
            return self._tokens_per_second(rows)

    def __str__(self) -> str:
        """What it knows."""
        with self._lock:
            speeds, standing = self._tokens_per_second(1), self._rates.standing()
            lines = [f"guesses of 0 to {self.most}, now best {speeds.index(max(speeds))}", str(self._seconds)]
            lines += ["guess  stands  tokens/s"]
            lines += [
                f"{k:5}  {f'{standing[k - 1]:6.2f}' if k else '     -'}  {speeds[k]:8.1f}"
                for k in range(self.most + 1)
            ]
            return "\n".join(lines)

    def _tokens_per_second(self, rows: int) -> list[float]:
        plain, standing, made = self._seconds.verify(0), self._rates.standing(), self._rates.made()
        speeds = [rows / plain]
        tokens, stood, reached, longest, ended = 1.0, 1.0, 1.0, 1.0, 0.0
        before = self._of(0)
        for k in range(1, self.most + 1):
            reached *= made[k - 1]
            stood *= made[k - 1] * standing[k - 1]
            tokens += stood
            # The draft and the forward are as long as the longest of the rows' drafts.
            longer = 1 - (1 - reached) ** rows
            ended += (longest - longer) * before
            longest, before = longer, self._of(k)
            speeds.append(rows * tokens / (ended + longest * before))
        return speeds

    def _of(self, guesses: int) -> float:
        """Seconds of a round in which the drafter was asked and made so many *guesses*."""
        return self._seconds.draft(guesses) + self._seconds.verify(guesses)

    def _price(self, guesses: int) -> float:
        """What such a round takes longer than one of plain decoding, in the latter."""
        seconds = self._of(guesses) + (self._seconds.catch_up() if self._gap else 0.0)
        return seconds / self._seconds.verify(0) - 1

    def _affordable(self, guesses: int) -> bool:
        if not guesses:
            return True
        price = self._price(guesses)
        return price <= self._stake and (price <= self._savings or not self._gap)

    def _settle(self, outcome: SpeculationStep) -> None:
        """Book a round at what such a round takes: what this one took may be an accident."""
        price = gain = 0.0
        if outcome.allowed:
            price = self._price(max(outcome.drafted))
            gain = sum(outcome.accepted) / len(outcome.accepted)
        net = gain - price
        if self._gap and net < 0:
            # A try may lose what was saved for it, and no more of the allowance.
            self._savings += net
        else:
            self._stake = min(self._stake + net, self.allowance)
        self._savings += self.share * (1 + price)
        if self._savings > self.allowance / 4:
            # Saving goes on until a try can be paid for.
            self._savings = min(self._savings, max(self.allowance / 4, self._price(1)))

    def _next_wait(self, outcome: SpeculationStep) -> int:
        if any(outcome.accepted) and any(k > self._price(k) for k in range(1, self.most + 1)):
            # It could pay: look again at once.
            return 0
        if not any(outcome.drafted):
            return self._wait
        return (
            min(max(2 * self._wait, _FIRST_WAIT), _LAST_WAIT) if self._gap else max(self._wait, _FIRST_WAIT)
        )
