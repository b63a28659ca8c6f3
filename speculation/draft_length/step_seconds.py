"""Time of a speculation step: drafting by draft length, the rest by token bucket."""

import bisect
import time
import weakref

import attrs
import torch

from ...decoding.cache.slots import Slots
from ...decoding.optional_protocols import AnyDecoder, OffersFeeder
from ...decoding.protocols import Decoder, SpeculationStep

_DRAFT_TOKEN_PRICE = 0.1
"""Prior time of a draft token, in steps of plain decoding."""

_MAX_RATIO = 1.25
"""Upper limit of measured over expected forward time."""

_LEARNING_RATE = 0.125
"""Exponent by which a measured ratio updates an estimate."""

_SETTLED = 64
"""Forwards of a width after which deviations are attributed to the machine, not to its initial timing."""

_NEW = 4
"""Steps of a width in which a faster one replaces its initial timing."""

_DOUBT = 2.0
"""How much too high the initial timing of a width may be."""

_OUTLIER = 4.0
"""Upper limit of measured over expected drafting time."""

_ORIGIN = 0.1
"""Weight of the origin (no draft tokens, no time), in measurements of one draft token."""


@attrs.frozen
class Price:
    """Extra time of a step with a draft over a plain one, in steps of plain decoding."""

    expected: float
    doubt: float = 0.0
    """By how much it may be less (:meth:`StepSeconds.doubt`)."""

    @property
    def least(self) -> float:
        """What it may be at least."""
        return self.expected - self.doubt


# Keyed by identity: equal decoders may be different programs.
_timed: dict[int, dict[int, float]] = {}


def time_widths(decoder: AnyDecoder) -> dict[int, float]:
    """
    Seconds of a forward for each width that scores every column, measured once per decoder.

    The forwards are padding only, which writes nothing; there are six of each width. A forward of several
    decoders that are combined runs each of them, at its smallest width that fits.
    """
    if isinstance(decoder, OffersFeeder):
        shape, each = decoder.shape, [time_widths(one) for one in decoder.decoders]
        return {
            width: sum(seconds[min(wide for wide in seconds if wide >= width)] for seconds in each)
            for width in shape.widths
            if width <= shape.scored_width
        }
    seconds = _timed.get(id(decoder))
    if seconds is None:
        slots, shape = Slots.of(decoder), decoder.shape
        widths = [width for width in shape.widths if width <= shape.scored_width]
        with slots.lock, torch.no_grad():
            for width in widths:
                _time_forward(decoder, width)
            # The widths take turns, so that other load affects all; the minimum, as interruptions only add.
            turns = [[_time_forward(decoder, width) for width in widths] for _ in range(5)]
        seconds = dict(zip(widths, map(min, zip(*turns, strict=True)), strict=True))
        _timed[id(decoder)] = seconds
        weakref.finalize(decoder, _timed.pop, id(decoder), None)
    return seconds


def _time_forward(decoder: Decoder, width: int) -> float:
    batch = decoder.shape.batch_size
    ids, start = torch.full((batch, width), -1), torch.zeros(batch, dtype=torch.int64)
    begun = time.perf_counter()
    # Reading a value synchronises with an asynchronous device.
    decoder.forward(ids, start)[0, 0, 0].item()
    return time.perf_counter() - begun


@attrs.define(eq=False)
class FittedLine:
    """
    Linear model of drafting seconds by number of draft tokens.

    Least squares of the relative errors, with exponential forgetting. Intercept and slope are
    >= 0; if all drafts had one length the line goes through the origin.
    """

    intercept: float = attrs.field(default=0.0, init=False)
    slope: float = attrs.field(default=0.0, init=False)
    # Weighted sums of 1, x, x², y and xy. The origin keeps a small constant weight.
    _w: float = attrs.field(default=0.0, init=False)
    _x: float = attrs.field(default=0.0, init=False)
    _xx: float = attrs.field(default=0.0, init=False)
    _y: float = attrs.field(default=0.0, init=False)
    _xy: float = attrs.field(default=0.0, init=False)

    def __call__(self, x: float) -> float:
        """The line at *x*."""
        return self.intercept + self.slope * x

    def learn(self, x: float, y: float) -> None:
        """Add a measurement."""
        keep, weight = 0.9, 1 / max(x, 1.0) ** 2
        self._w, self._x = keep * self._w + weight, keep * self._x + weight * x
        self._xx, self._y = keep * self._xx + weight * x * x, keep * self._y + weight * y
        self._xy = keep * self._xy + weight * x * y
        total = self._w + _ORIGIN
        spread = total * self._xx - self._x**2
        self.slope = max((total * self._xy - self._x * self._y) / spread, 0.0) if self._xx else 0.0
        self.intercept = (self._y - self.slope * self._x) / total
        if self.intercept < 0:
            self.intercept, self.slope = 0.0, self._xy / self._xx


@attrs.define(eq=False)
class StepSeconds:
    """
    Seconds of a speculation step, learned from past steps.

    Outliers are clipped, so that one slow step changes little.
    """

    _verify: dict[int, float] = attrs.field(factory=dict, init=False)
    """By width: seconds of a step without its drafting."""

    _seen: dict[int, int] = attrs.field(factory=dict, init=False)
    """By width: number of forwards so far."""

    _widths: tuple[int, ...] = attrs.field(default=(), init=False)
    """Ascending; empty before :meth:`prepare`."""

    _draft: FittedLine = attrs.field(factory=FittedLine, init=False)
    """Drafting seconds where the step before had a draft too."""

    _catch_up: float | None = attrs.field(default=None, init=False)

    def prepare(self, decoder: AnyDecoder, exact_width: bool) -> None:
        """Time the widths of *decoder*; with *exact_width* every forward has the widest."""
        seconds = time_widths(decoder)
        widths = tuple(seconds)[-1:] if exact_width else tuple(seconds)
        # Times learned from steps are better than those of idle forwards.
        if widths != self._widths:
            self._widths, self._seen = widths, {}
            self._verify = {width: seconds[width] for width in widths}

    def verify(self, length: int) -> float:
        """Seconds of a step without drafting, where the longest draft has *length* tokens."""
        width = self._width(length)
        # An unmeasured width takes the nearest one's time; without any the unit is arbitrary.
        nearest = min(self._verify, key=lambda known: abs(known - width), default=None)
        if nearest is None:
            return 1.0
        # Wider forwards take at least as long. If the machine has become slower since the wider ones
        # were timed, they would look cheap, and useless drafts worth their time.
        return max(seconds for known, seconds in self._verify.items() if known <= nearest)

    def doubt(self, length: int) -> float:
        """By how much :meth:`verify` may be too high: a bad timing must not forbid an unused width."""
        seconds = self.verify(length)
        return (
            0.0
            if self._seen.get(self._width(length))
            else min(seconds - seconds / _DOUBT, seconds - self.verify(0))
        )

    def draft(self, length: int) -> float:
        """Seconds of drafting *length* tokens."""
        known = self._draft.slope or self._draft.intercept
        return self._draft(length) if known else _DRAFT_TOKEN_PRICE * self.verify(0) * length

    def evidence_prices(self, most: int) -> list[Price]:
        """Prices of drafts of 0 to *most* tokens of a drafter with evidence, which costs next to nothing."""
        unit, prices = self.verify(0), [Price(0.0)]
        verify = doubt = 0.0
        width = None
        for length in range(1, most + 1):
            if width != (width := self._width(length)):
                verify, doubt = self.verify(length), self.doubt(length)
            # The line is zero where no draft was timed.
            prices.append(Price((self._draft(length) + verify) / unit - 1, doubt / unit))
        return prices

    def catch_up(self) -> float:
        """Extra seconds of a draft after steps without one: a draft model is fed the tokens it missed."""
        return self.draft(1) if self._catch_up is None else self._catch_up

    def learn(self, outcome: SpeculationStep, gap: int) -> None:
        """Learn the times of a step, *gap* steps after the last one with a draft."""
        length = max(outcome.drafted, default=0)
        scored = length if outcome.longest is None else outcome.longest
        self._learn_verify(self._width(scored), outcome.target_seconds + outcome.other_seconds)
        if not outcome.allowed:
            return
        late = outcome.draft_seconds - self.draft(length)
        if (gap or self._catch_up is None) and late > 0:
            # Clip: a whole prompt, or an outlier, is not representative of catching up a few steps.
            self._catch_up = min(late, _OUTLIER * self.catch_up())
        else:
            most = _OUTLIER * self.draft(length)
            self._draft.learn(length, min(outcome.draft_seconds, most) if most else outcome.draft_seconds)

    def _width(self, length: int) -> int:
        if not self._widths:
            return length + 1
        return self._widths[min(bisect.bisect_left(self._widths, length + 1), len(self._widths) - 1)]

    def _learn_verify(self, width: int, seconds: float) -> None:
        # The clock's resolution may give 0.
        seconds = max(seconds, 1e-9)
        if self._seen.get(width, 0) < _NEW and seconds < self._verify.get(width, seconds) / _MAX_RATIO:
            # Interruptions only add.
            self._verify[width] = seconds
        expected = self._verify.setdefault(width, seconds)
        ratio = min(max(seconds / expected, 1 / _MAX_RATIO), _MAX_RATIO)
        self._seen[width] = self._seen.get(width, 0) + 1
        # Half of the deviation is then attributed to the machine or the position, and applied to every width.
        others = ratio ** (_LEARNING_RATE / 2) if self._seen[width] > _SETTLED else 1.0
        for known in self._verify:
            self._verify[known] *= ratio**_LEARNING_RATE if known == width else others

    def __str__(self) -> str:
        """Milliseconds by width, and of drafting."""
        widths = ", ".join(
            f"{1e3 * self._verify[width]:.2f} at width {width}" for width in sorted(self._verify)
        )
        draft, per_token = 1e3 * self.draft(0), 1e3 * (self.draft(1) - self.draft(0))
        return f"milliseconds: {widths or 'none timed'}; draft {draft:.2f} + {per_token:.2f} a token"
