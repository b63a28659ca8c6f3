"""A draft length that pays."""

import threading

import attrs
from attrs import validators

from ..decoding.protocols import Decoder, Round
from ..decoding.real_numbers import as_real, one_real
from ..decoding.whole_numbers import a_whole_number
from .guess_rates import GuessRates
from .round_seconds import RoundSeconds

_FIRST_WAIT, _LAST_WAIT = 4, 128
"""Rounds without a draft before it is given a try, after the first vain try and after many."""


@attrs.define(eq=False)
class AdaptiveLength:
    r"""
    Guess as far ahead as gives the most tokens per second.

    Of *k* guesses, each of which stands with probability :math:`a_i` where those before it stood, a
    round gives :math:`1 + a_1 + a_1 a_2 + \dots` tokens, and it costs what drafting them and a
    forward of their width cost. Both are learned from past rounds, the forwards' seconds
    beforehand from idle ones, and the *k* of the best ratio is taken (Leviathan, Kalman and
    Matias, 2023, `Fast Inference from Transformers via Speculative Decoding
    <https://arxiv.org/abs/2211.17192>`_, theorem 3.8, with measured costs and an acceptance for
    each position).

    Where no length pays it is 0, plain decoding, and now and then one guess is tried to see
    whether drafts have become good: after 4 rounds, 8, 16 and so on to 128, and within an
    account. Rounds that gave fewer tokens than plain decoding would have in their time are
    charged to it, those that gave more are credited, and nothing is drafted that it could not
    pay for. So speculation costs at most *allowance* rounds of plain decoding and *share* of the time.

    What it knows stays from run to run. Share one between generators of the same target and
    draft, not between different ones.
    """

    most: int = attrs.field(default=8, validator=[a_whole_number, validators.ge(0)])
    """The longest draft; the decoder has to score one column more."""

    expected: float = attrs.field(
        default=0.7, converter=as_real, validator=one_real(">= 0 and <= 1", lambda value: 0 <= value <= 1)
    )
    """The share of guesses that is expected to stand before any was seen."""

    memory: float = attrs.field(
        default=32.0, converter=as_real, validator=one_real(">= 1", lambda value: value >= 1)
    )
    """After how many rounds what was seen weighs 1/e. Fewer follow a text that changes sooner."""

    allowance: float = attrs.field(
        default=4.0, converter=as_real, validator=one_real("> 0", lambda value: value > 0)
    )
    """How many rounds of plain decoding the account holds, at first and at most."""

    share: float = attrs.field(
        default=0.005, converter=as_real, validator=one_real(">= 0 and < 1", lambda value: 0 <= value < 1)
    )
    """The share of all time that goes into the account."""

    _rates: GuessRates = attrs.field(init=False, repr=False)
    _seconds: RoundSeconds = attrs.field(factory=RoundSeconds, init=False, repr=False)
    _account: float = attrs.field(init=False, repr=False)
    _gap: int = attrs.field(default=0, init=False, repr=False)
    """Rounds since the last draft."""

    _wait: int = attrs.field(default=_FIRST_WAIT, init=False, repr=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Know nothing, owe nothing."""
        self._rates = GuessRates(self.most, self.expected, self.memory)
        self._account = self.allowance

    def prepare(self, decoder: Decoder, exact_width: bool = False) -> None:
        """
        Time the target's forwards, idle ones; a generator calls this when it is built.

        Args:
            decoder: The target. What its cache holds stays.

            exact_width: Whether every forward is of the widest width that scores all columns.
        """
        with self._lock:
            self._seconds.prepare(decoder, exact_width)

    def __call__(self, rows: int) -> int:
        """How many tokens ahead each of *rows* rows may be guessed now."""
        with self._lock:
            speeds = self._tokens_per_second(rows)
            lengths = [k for k in range(self.most + 1) if self._price(k) <= self._account or not k]
            best = max(lengths, key=speeds.__getitem__)
            if best == 0 and self._gap >= self._wait and 1 in lengths:
                return 1
            return best

    def learn(self, outcome: Round) -> None:
        """Hear what a round came to."""
        with self._lock:
            self._seconds.learn(outcome, self._gap)
            self._settle(outcome)
            if not outcome.allowed:
                self._gap += 1
                return
            if self._gap:
                self._rates.lapse()
            self._rates.learn(outcome)
            if any(outcome.accepted) and self._could_pay():
                # Worth another look at once.
                self._wait = 0
            elif any(outcome.drafted):
                self._wait = min(max(2 * self._wait, _FIRST_WAIT), _LAST_WAIT)
            self._gap = 0

    def tokens_per_second(self, rows: int = 1) -> list[float]:
        """What is to be expected of drafts of 0, 1, ..., *most* guesses, *rows* rows at a time."""
        with self._lock:
            return self._tokens_per_second(rows)

    def _tokens_per_second(self, rows: int) -> list[float]:
        standing, made = self._rates.standing(), self._rates.made()
        tokens, reached, stood = 1.0, 1.0, 1.0
        # Seconds over the drafts that end before the k-th guess; those that reach it are added for each k.
        seconds, longest = 0.0, 1.0
        speeds = []
        for k in range(self.most + 1):
            if k:
                stood *= made[k - 1] * standing[k - 1]
                tokens += stood
                reached *= made[k - 1]
                # The forward is as wide as the longest draft of the rows asks for.
                longer = 1 - (1 - reached) ** rows
                seconds += (longest - longer) * self._of_draft(k - 1)
                longest = longer
            speeds.append(rows * tokens / (seconds + longest * self._of_draft(k)))
        return speeds

    def _of_draft(self, guesses: int) -> float:
        return self._seconds.draft(guesses) + self._seconds.verify(guesses)

    def _price(self, guesses: int) -> float:
        """What a round takes longer than one without a draft, in such rounds."""
        if not guesses:
            return 0.0
        seconds = self._of_draft(guesses) + self._seconds.catch_up(self._gap)
        return seconds / self._seconds.verify(0) - 1

    def _could_pay(self) -> bool:
        """Whether there is a length that would gain if all its guesses stood."""
        return any(k > self._price(k) for k in range(1, self.most + 1))

    def _settle(self, outcome: Round) -> None:
        """Charge a round by what such a round takes; what this one took may be an accident."""
        price, gain = self._price(max(outcome.drafted, default=0)), 0.0
        if outcome.drafted:
            gain = sum(outcome.accepted) / len(outcome.accepted)
        account = self._account + self.share * (1 + price) + gain - price
        self._account = min(account, self.allowance)
