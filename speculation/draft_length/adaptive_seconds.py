"""What rounds cost: the draft by its length, and everything else by the width of the forward."""

import bisect
import time
import weakref

import attrs
import torch

from ...decoding.cache.slots import Slots
from ...decoding.protocols import Decoder, SpeculationStep

_GUESS_PRICE = 0.1
"""What a guess is taken to cost before one was timed, in rounds of plain decoding."""

_SURPRISE = 1.25
"""A forward that took more than this many times what was expected says no more than this."""

_BELIEF = 0.125
"""The part of a surprise that is believed."""

_SETTLED = 64
"""After so many forwards of a width, what still surprises is not that it was timed wrongly."""

_OUTLIER = 4.0
"""A draft that took more than this many times what was expected says no more than this."""

_ORIGIN = 0.1
"""What it weighs that no guesses take no time, in measurements of one guess."""

# By identity: decoders may compare equal and still be two programs.
_timed: dict[int, dict[int, float]] = {}


def time_widths(decoder: Decoder) -> dict[int, float]:
    """
    Seconds of a forward in each width that scores every column, measured once a decoder.

    The forwards are idle: all padding, which writes nothing. There are six of each width.
    """
    seconds = _timed.get(id(decoder))
    if seconds is None:
        slots, shape = Slots.of(decoder), decoder.shape
        widths = [width for width in shape.widths if width <= shape.scored_width]
        with slots.lock, torch.no_grad():
            for width in widths:
                _time_forward(decoder, width)
            # Width by width in turn, so that a busy moment meets them all; what interrupts only adds.
            turns = [[_time_forward(decoder, width) for width in widths] for _ in range(5)]
        seconds = dict(zip(widths, map(min, zip(*turns, strict=True)), strict=True))
        _timed[id(decoder)] = seconds
        weakref.finalize(decoder, _timed.pop, id(decoder), None)
    return seconds


def _time_forward(decoder: Decoder, width: int) -> float:
    batch = decoder.shape.batch_size
    ids, start = torch.full((batch, width), -1), torch.zeros(batch, dtype=torch.int64)
    begun = time.perf_counter()
    # Reading a number waits for a device that was only told to begin.
    decoder.forward(ids, start)[0, 0, 0].item()
    return time.perf_counter() - begun


@attrs.define(eq=False)
class Line:
    """
    Seconds of so many guesses: a line through what was measured, the late measurements weighing most.

    Least squares of the relative errors, with forgetting. Neither intercept nor slope is below 0,
    and where all drafts had one length the line goes through the origin.
    """

    intercept: float = attrs.field(default=0.0, init=False)
    slope: float = attrs.field(default=0.0, init=False)
    # Sums of weights, and weighted ones of x, x², y and xy. The origin weighs a little, for ever.
    _w: float = attrs.field(default=0.0, init=False)
    _x: float = attrs.field(default=0.0, init=False)
    _xx: float = attrs.field(default=0.0, init=False)
    _y: float = attrs.field(default=0.0, init=False)
    _xy: float = attrs.field(default=0.0, init=False)

    def __call__(self, x: float) -> float:
        """The line at *x*."""
        return self.intercept + self.slope * x

    def learn(self, x: float, y: float) -> None:
        """Add a point."""
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
class RoundSeconds:
    """
    Seconds of a round, learned from rounds.

    Machines are noisy: a round that took much longer than expected is not believed at once, so
    that one slow round changes nothing.
    """

    _verify: dict[int, float] = attrs.field(factory=dict, init=False)
    """By width: a round but for its draft."""

    _seen: dict[int, int] = attrs.field(factory=dict, init=False)
    """By width: forwards so far."""

    _widths: tuple[int, ...] = attrs.field(default=(), init=False)
    """Ascending; none where nobody said which there are."""

    _draft: Line = attrs.field(factory=Line, init=False)
    """By guesses: a draft where the round before had one too."""

    _catch_up: float | None = attrs.field(default=None, init=False)

    def prepare(self, decoder: Decoder, exact_width: bool) -> None:
        """Time the widths of *decoder*; with *exact_width* every forward is of the widest."""
        seconds = time_widths(decoder)
        widths = tuple(seconds)[-1:] if exact_width else tuple(seconds)
        # What rounds have said since is better than what idle forwards said.
        if widths != self._widths:
            self._widths, self._seen = widths, {}
            self._verify = {width: seconds[width] for width in widths}

    def verify(self, guesses: int) -> float:
        """A round but for its draft, where the longest draft is of so many *guesses*."""
        width = self._width(guesses)
        # Never seen: the nearest one, or any number as long as there is none.
        nearest = min(self._verify, key=lambda known: abs(known - width), default=None)
        if nearest is None:
            return 1.0
        # What is wider takes no less. A machine that has become slow since the wider ones were
        # timed would make them look cheap, and drafts that never stand worth their while.
        return max(seconds for known, seconds in self._verify.items() if known <= nearest)

    def draft(self, guesses: int) -> float:
        """A draft of so many *guesses*."""
        return self._draft(guesses) if self._draft.slope else _GUESS_PRICE * self.verify(0) * guesses

    def catch_up(self) -> float:
        """What a draft takes longer after rounds without one: a draft model is fed what it missed."""
        return self.draft(1) if self._catch_up is None else self._catch_up

    def learn(self, outcome: SpeculationStep, gap: int) -> None:
        """Hear what a round took, *gap* rounds after the last one that had a draft."""
        guesses = max(outcome.drafted, default=0)
        self._learn_verify(self._width(guesses), outcome.target_seconds + outcome.other_seconds)
        if not outcome.allowed:
            return
        late = outcome.draft_seconds - self.draft(guesses)
        if (gap or self._catch_up is None) and late > 0:
            # A whole prompt, or an accident, is no measure of what a few rounds take to catch up.
            self._catch_up = min(late, _OUTLIER * self.catch_up())
        else:
            most = _OUTLIER * self.draft(guesses)
            self._draft.learn(guesses, min(outcome.draft_seconds, most) if most else outcome.draft_seconds)

    def _width(self, guesses: int) -> int:
        if not self._widths:
            return guesses + 1
        return self._widths[min(bisect.bisect_left(self._widths, guesses + 1), len(self._widths) - 1)]

    def _learn_verify(self, width: int, seconds: float) -> None:
        # A clock may not have moved.
        seconds = max(seconds, 1e-9)
        expected = self._verify.setdefault(width, seconds)
        surprise = min(max(seconds / expected, 1 / _SURPRISE), _SURPRISE)
        self._seen[width] = self._seen.get(width, 0) + 1
        # Half of it is then the machine's or the position's, and so every width's.
        others = surprise ** (_BELIEF / 2) if self._seen[width] > _SETTLED else 1.0
        for known in self._verify:
            self._verify[known] *= surprise**_BELIEF if known == width else others

    def __str__(self) -> str:
        """Milliseconds by width, and of a draft."""
        widths = ", ".join(
            f"{1e3 * self._verify[width]:.2f} at width {width}" for width in sorted(self._verify)
        )
        draft, guess = 1e3 * self.draft(0), 1e3 * (self.draft(1) - self.draft(0))
        return f"milliseconds: {widths or 'none timed'}; draft {draft:.2f} + {guess:.2f} a guess"
