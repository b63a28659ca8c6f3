"""Adaptive draft length."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import attrs
from attrs import validators

from ...decoding.fork_safe_lock import fork_safe_lock
from ...decoding.optional_protocols import AnyDecoder
from ...decoding.protocols import SpeculationStep
from ...decoding.validation import a_whole_number, as_real, one_real
from .acceptance_rates import AcceptanceRates
from .evidence_length import EvidenceLength
from .step_seconds import StepSeconds

LONGEST = 2**20
"""The largest maximum."""

_FIRST_WAIT, _LAST_WAIT = 4, 128
"""Speculation steps without a draft before a trial: initially, and after repeated failed trials."""


@attrs.define(eq=False)
class AdaptiveLength:
    """
    The draft length with the highest expected tokens per second; 0 where speculation does not pay.

    A draft of *k* tokens yields 1 + a₁ + a₁a₂ + ... + a₁⋯aₖ tokens, if its *i*-th token is accepted
    with probability aᵢ given that those before it were. It costs the drafting, and a target forward
    of the token bucket that k + 1 columns need; where padding takes less time than tokens, of k + 1 tokens
    in it. Both are learned from past speculation steps (forward times initially from forwards that
    :meth:`prepare` makes), and the *k* of the best ratio is used. That is the speed-up of Leviathan, Kalman
    and Matias, 2023, `Fast Inference from Transformers via Speculative Decoding
    <https://arxiv.org/abs/2211.17192>`_, theorem 3.8, with an acceptance rate per position and measured
    costs.

    Where the best *k* is 0, plain decoding, the next best is tried now and then, to detect whether
    drafts have improved: after 4 steps, and after twice as many with each failed trial, up to 128.

    A drafter that gives evidence for its drafts, such as a lookup by its matches
    (:class:`~decodekit.decoding.optional_protocols.GivesEvidence`), is asked for it in steps in which a draft
    may pay, and acceptance is learned by its strength
    (:class:`.evidence_length.EvidenceLength`, which bounds the loss to 1.4 steps of plain decoding and
    0.3 % of the steps, but for a width's first use). So long matches are drafted from while short ones are
    left, and a text that begins to repeat itself is noticed within four steps. In a batch whose draft tokens
    cost time, rows with weak evidence do not draft while others do.

    The loss of other drafters is bounded too. A length is used only while its price is at most the rest of
    *allowance*, which only gains of speculation refill. A trial is made once its price has been saved from
    *share* of the time. A draft length that cannot pay as far as is known, even if all of its tokens are
    accepted, is not tried; where that holds for every length, the shortest is tried once twice its price
    has been saved, since it may cost less by now. (The draft model's prefill of a first prompt is not
    included.)

    Refused where the decoder is divided over processes, whose times and so whose lengths differ.

    Learned statistics persist between runs; a copy starts without them. Share one instance between
    generators of the same target and drafter only. Under
    :class:`~decodekit.decoding.ExactMatch` the length does not change the text;
    under other verifications a sampled text depends on it, and so on timing, its distribution does
    not.
    """

    decides_by_time: ClassVar[bool] = True

    most: int = attrs.field(default=8, validator=[a_whole_number, validators.ge(0), validators.le(LONGEST)])
    """Maximum draft length, at most :data:`LONGEST`. The decoder has to score one column more."""

    expected: float = attrs.field(
        default=0.7, converter=as_real, validator=one_real(">= 0 and <= 1", lambda value: 0 <= value <= 1)
    )
    """Prior acceptance rate."""

    memory: float = attrs.field(
        default=24.0, converter=as_real, validator=one_real(">= 1", lambda value: value >= 1)
    )
    """Speculation steps after which an observation weighs 1/e; typically 10 to 50. Lower adapts faster."""

    allowance: float = attrs.field(
        default=8.0, converter=as_real, validator=one_real("> 0", lambda value: value > 0)
    )
    """Maximum loss from wrong lengths, in steps of plain decoding."""

    share: float = attrs.field(
        default=0.005, converter=as_real, validator=one_real(">= 0 and < 1", lambda value: 0 <= value < 1)
    )
    """Fraction of the time that trials may lose, besides a quarter of *allowance*."""

    _rates: AcceptanceRates = attrs.field(init=False, repr=False)
    _by_evidence: EvidenceLength = attrs.field(init=False, repr=False)
    _seconds: StepSeconds = attrs.field(factory=StepSeconds, init=False, repr=False)

    _stake: float = attrs.field(init=False, repr=False)
    """Remaining allowance."""

    _savings: float = attrs.field(init=False, repr=False)
    """Budget for trials."""

    _gap: int = attrs.field(default=0, init=False, repr=False)
    """Steps since the last draft."""

    _wait: int = attrs.field(default=_FIRST_WAIT, init=False, repr=False)
    """Gap before the next trial."""

    _trying: bool = attrs.field(default=False, init=False, repr=False)
    """Whether the newest length was a trial's."""

    _lock: threading.Lock = attrs.field(factory=fork_safe_lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Start from the prior."""
        self._rates = AcceptanceRates(self.most, self.expected, self.memory)
        self._by_evidence = EvidenceLength(self.memory)
        self._stake, self._savings = self.allowance, self.allowance / 4

    def __reduce__(self) -> tuple[Any, ...]:
        # A lock cannot be copied, and the statistics belong to one machine and one pair of models.
        return type(self), (self.most, self.expected, self.memory, self.allowance, self.share)

    def prepare(self, decoder: AnyDecoder, exact_width: bool = False) -> None:
        """
        Time the target's forwards; called when a generator is built.

        Args:
            decoder: The target. Its cache is unchanged, but where padding takes less time than tokens: then
                slots behind what rows hold are written, and a full row loses its last tokens.

            exact_width: Whether every forward uses the widest token bucket that scores all columns.
        """
        with self._lock:
            self._seconds.prepare(decoder, exact_width)

    def __call__(self, rows: int) -> int:
        """Maximum draft length of each of *rows* rows in the next speculation step."""
        return self.length_beside(rows, 0)

    def length_beside(self, rows: int, delayed: int) -> int:
        """The same, where *delayed* other rows wait for the forward without a draft."""
        with self._lock:
            self._trying = False
            if 0 < self._gap < self._wait:
                # No new information about drafts since plain decoding was found best.
                return 0
            speeds = self._tokens_per_second(rows, delayed)
            best = max(filter(self._affordable, range(self.most + 1)), key=speeds.__getitem__)
            if best or not self.most or self._gap < self._wait:
                return best
            attempt = max(self._trials(rows, delayed), key=speeds.__getitem__, default=0)
            if self._least_price(attempt) > self._savings:
                return 0
            self._trying = attempt > 0
            return attempt

    def wants_evidence(self) -> bool:
        """Whether evidence is to be weighed in the next step; not if none is expected to pay in it."""
        with self._lock:
            return self._by_evidence.wants_evidence()

    def weigh(self, evidence: Sequence[int]) -> list[int]:
        """The draft length of each row, given the drafter's evidence for it; 0 where it is too weak."""
        with self._lock:
            return self._by_evidence.choose(evidence, self._seconds.evidence_prices(self.most))

    def learn(self, outcome: SpeculationStep) -> None:
        """Update the statistics with the outcome of a speculation step."""
        with self._lock:
            if outcome.evidence is not None:
                self._seconds.learn(outcome, gap=0)
                prices = self._seconds.evidence_prices(self.most) if outcome.allowed else None
                self._by_evidence.learn(outcome, prices)
                return
            self._seconds.learn(outcome, self._gap)
            self._settle(outcome)
            if outcome.only_catches_up:
                # The drafter was fed what it lacked: the drafts that were asked for are still to come.
                return
            if outcome.allowed:
                if self._gap:
                    self._rates.lapse()
                self._rates.learn(outcome)
                self._wait = self._next_wait(outcome)
            self._gap = 0 if outcome.allowed else self._gap + 1

    def tokens_per_second(self, rows: int = 1, delayed: int = 0) -> list[float]:
        """
        Expected tokens per second of all rows together, at draft lengths 0, 1, ..., *most*.

        Args:
            rows: Those that may draft.

            delayed: Others in the same forwards.
        """
        with self._lock:
            return self._tokens_per_second(rows, delayed)

    def __str__(self) -> str:
        """Learned rates and times as a table."""
        with self._lock:
            speeds, acceptance = self._tokens_per_second(1, 0), self._rates.acceptance()
            lines = [f"draft lengths 0 to {self.most}, now best {speeds.index(max(speeds))}"]
            lines += [str(self._seconds), "draft  accept  tokens/s"]
            lines += [
                f"{k:5}  {f'{acceptance[k - 1]:6.2f}' if k else '     -'}  {speeds[k]:8.1f}"
                for k in range(self.most + 1)
            ]
            return "\n".join(lines)

    def _tokens_per_second(self, rows: int, delayed: int) -> list[float]:
        plain, acceptance = self._seconds.verify(0), self._rates.acceptance()
        draft_rates = self._rates.draft_rates()
        speeds = [(rows + delayed) / plain]
        tokens, all_accepted, reached, longest, ended = 1.0, 1.0, 1.0, 1.0, 0.0
        before = self._step_seconds(0)
        for k in range(1, self.most + 1):
            reached *= draft_rates[k - 1]
            all_accepted *= draft_rates[k - 1] * acceptance[k - 1]
            tokens += all_accepted
            # The longest draft of the rows determines the time of drafting and of the forward.
            longer = 1 - (1 - reached) ** rows
            ended += (longest - longer) * before
            longest, before = longer, self._step_seconds(k)
            speeds.append((rows * tokens + delayed) / (ended + longest * before))
        return speeds

    def _step_seconds(self, length: int) -> float:
        """Seconds of a step with drafts of up to *length* tokens."""
        return self._seconds.draft(length) + self._seconds.verify(length)

    def _price(self, length: int) -> float:
        """Extra time of such a step over plain decoding, in steps of plain decoding."""
        seconds = self._step_seconds(length) + (self._seconds.catch_up() if self._gap else 0.0)
        return seconds / self._seconds.verify(0) - 1

    def _trials(self, rows: int, delayed: int) -> Iterator[int]:
        """
        The lengths that a trial may have: those whose price can be saved, and that could pay.

        If there are none, the shortest once twice its price has been saved.
        """
        could_pay = False
        for length in range(1, self.most + 1):
            price = self._least_price(length)
            if price <= self._most_savings() and rows * length > price * (rows + delayed):
                could_pay = True
                yield length
        if not could_pay and self._savings >= 2 * self._least_price(1):
            # No other step shows whether the price has fallen. Twice the price, so that it is rare.
            yield 1

    def _least_price(self, length: int) -> float:
        """Lower bound of :meth:`_price`, given :meth:`.StepSeconds.doubt`."""
        return self._price(length) - self._seconds.doubt(length) / self._seconds.verify(0)

    def _most_savings(self) -> float:
        """Limit of the savings: at least twice the price of the shortest draft, for :meth:`_trials`."""
        return max(self.allowance / 4, 2 * self._price(1))

    def _affordable(self, length: int) -> bool:
        if not length:
            return True
        price = self._price(length)
        return price <= self._stake and (price <= self._savings or not self._gap)

    def _settle(self, outcome: SpeculationStep) -> None:
        """Account for a step at its expected time; its measured time may be an outlier."""
        price = gain = 0.0
        if outcome.allowed:
            price = self._price(max(outcome.drafted))
            gain = sum(outcome.accepted) / (len(outcome.accepted) + outcome.delayed)
        net = gain - price
        if (self._gap or self._trying) and net < 0:
            # A trial's loss comes out of the savings, not out of the allowance.
            self._savings += net
        else:
            self._stake = min(self._stake + net, self.allowance)
        self._savings += self.share * (1 + price)
        if self._savings > self.allowance / 4:
            self._savings = min(self._savings, self._most_savings())

    def _next_wait(self, outcome: SpeculationStep) -> int:
        share = len(outcome.drafted) / (len(outcome.drafted) + outcome.delayed)
        if any(outcome.accepted) and any(share * k > self._price(k) for k in range(1, self.most + 1)):
            # A draft could pay off: try again immediately.
            return 0
        if not any(outcome.drafted):
            return self._wait
        return (
            min(max(2 * self._wait, _FIRST_WAIT), _LAST_WAIT) if self._gap else max(self._wait, _FIRST_WAIT)
        )
