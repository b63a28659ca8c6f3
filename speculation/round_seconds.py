"""What rounds cost: the draft by its length, and everything else by the width of the forward."""

import bisect
import statistics
import time
import weakref
from collections.abc import Sequence

import attrs
import torch

from ..decoding.protocols import Decoder, Round
from ..decoding.slots import Slots

_GUESS_PRICE = 0.1
"""What a guess is taken to cost before one was timed, in narrow forwards of the target."""

_SURPRISE = 1.5
"""A round tells no more than that it took this many times as long as expected, or that much less."""

_RATE = 0.125
"""How much of a surprise is believed."""

# By identity: decoders may compare equal and still be two programs.
_timed: dict[int, dict[int, float]] = {}


def time_widths(decoder: Decoder) -> dict[int, float]:
    """
    Seconds of a forward in each width that scores every column, measured once a decoder.

    The forwards are idle: all padding, which writes nothing. Takes six forwards a width.
    """
    if id(decoder) not in _timed:
        slots, shape = Slots.of(decoder), decoder.shape
        with slots.lock, torch.no_grad():
            seconds = {
                width: _seconds_of(decoder, width) for width in shape.widths if width <= shape.scored_width
            }
        _timed[id(decoder)] = seconds
        weakref.finalize(decoder, _timed.pop, id(decoder), None)
    return _timed[id(decoder)]


def _seconds_of(decoder: Decoder, width: int) -> float:
    """The median of five, after one to warm up."""
    ids = torch.full((decoder.shape.batch_size, width), -1)
    start, seconds = torch.zeros(decoder.shape.batch_size, dtype=torch.int64), []
    for _ in range(6):
        begun = time.perf_counter()
        # Reading a number waits for a device that was only told to begin.
        decoder.forward(ids, start)[0, 0, 0].item()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])


@attrs.define(eq=False)
class Line:
    """
    A line through points, the late ones weighing most.

    Least squares with forgetting, and a pull of the intercept to 0 so that points of one x
    make a line through the origin. Neither intercept nor slope is below 0.
    """

    _n: float = 0.0
    _x: float = 0.0
    _xx: float = 0.0
    _y: float = 0.0
    _xy: float = 0.0

    def __bool__(self) -> bool:
        """Whether there is a point that says something about the slope."""
        return self._xx > 0

    def learn(self, x: float, y: float) -> None:
        """Add a point; one far from the line is moved towards it."""
        if self:
            y = min(y, 3 * self(x)) if self(x) > 0 else y
        keep = 0.9
        self._n, self._x, self._xx = keep * self._n + 1, keep * self._x + x, keep * self._xx + x * x
        self._y, self._xy = keep * self._y + y, keep * self._xy + x * y

    def __call__(self, x: float) -> float:
        """The line at *x*."""
        intercept, slope = self._coefficients()
        return intercept + slope * x

    def _coefficients(self) -> tuple[float, float]:
        if not self:
            return self._y / (self._n + 1), 0.0
        n = self._n + 1
        determinant = n * self._xx - self._x**2
        intercept = (self._xx * self._y - self._x * self._xy) / determinant
        if intercept < 0:
            return 0.0, self._xy / self._xx
        slope = (n * self._xy - self._x * self._y) / determinant
        return (self._y / n, 0.0) if slope < 0 else (intercept, slope)


@attrs.define(eq=False)
class RoundSeconds:
    """
    Seconds of a round, learned from rounds.

    A round that took much longer than expected is not believed at once: machines are noisy,
    and one slow round is to change nothing.
    """

    _verify: dict[int, float] = attrs.field(factory=dict, init=False)
    """By width: of a whole round but for the draft."""

    _widths: Sequence[int] = attrs.field(default=(), init=False)
    """Ascending; none if any number of columns may be a forward of its own."""

    _draft: Line = attrs.field(factory=Line, init=False)
    """By guesses: of drafting where the round before was drafted as well."""

    _catch_up: Line = attrs.field(factory=Line, init=False)
    """By rounds without a draft: what the next draft takes longer."""

    _drafts: int = attrs.field(default=0, init=False)

    def prepare(self, decoder: Decoder, exact_width: bool) -> None:
        """Time the widths of *decoder*; with *exact_width* every forward is of the widest."""
        seconds = time_widths(decoder)
        self._verify = dict(list(seconds.items())[-1:] if exact_width else seconds)
        self._widths = tuple(self._verify)

    def verify(self, guesses: int) -> float:
        """Of everything but the draft, where the longest draft is of so many *guesses*."""
        if not self._verify:
            return 1.0
        width = self._width(guesses)
        # Of the widths that were seen the nearest, where they were not timed beforehand.
        return self._verify[min(self._verify, key=lambda known: abs(known - width))]

    def draft(self, guesses: int) -> float:
        """Of drafting so many *guesses*."""
        return self._draft(guesses) if self._draft else _GUESS_PRICE * self.verify(0) * guesses

    def catch_up(self, gap: int) -> float:
        """Of what a drafter does first after *gap* rounds in which nobody asked it."""
        if not gap:
            return 0.0
        return self._catch_up(gap) if self._catch_up else self.draft(1)

    def learn(self, outcome: Round, gap: int) -> None:
        """Hear what a round took, *gap* rounds after the one that was drafted last."""
        guesses = max(outcome.drafted, default=0)
        self._learn_verify(self._width(guesses), outcome.target_seconds + outcome.other_seconds)
        if not outcome.allowed:
            return
        self._drafts += 1
        late = outcome.draft_seconds - self.draft(guesses)
        if gap and late > 0:
            self._catch_up.learn(gap, late)
        elif self._drafts > 1:
            # The very first had the prompt to read.
            self._draft.learn(guesses, outcome.draft_seconds)

    def _width(self, guesses: int) -> int:
        if not self._widths:
            return guesses + 1
        return self._widths[min(bisect.bisect_left(self._widths, guesses + 1), len(self._widths) - 1)]

    def _learn_verify(self, width: int, seconds: float) -> None:
        seconds = max(seconds, 1e-9)
        if width not in self._verify:
            self._verify[width] = seconds
            return
        surprise = min(max(seconds / self._verify[width], 1 / _SURPRISE), _SURPRISE)
        for known in self._verify:
            # Half of what surprises is the machine's or the position's, and every width's.
            self._verify[known] *= surprise ** (_RATE if known == width else _RATE / 2)
