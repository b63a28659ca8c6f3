"""Time of a speculation step: drafting by draft length, the rest by token bucket."""

import bisect
import itertools
from collections.abc import Iterable

import attrs

from ...decoding.optional_protocols import AnyDecoder
from ...decoding.protocols import SpeculationStep
from .fitted_line import FittedLine
from .learned_seconds import LEARNING_RATE, LearnedSeconds
from .timed_widths import WidthSeconds, time_widths

_DRAFT_TOKEN_PRICE = 0.1
"""Prior time of a draft token, in steps of plain decoding."""

_SETTLED = 64
"""Forwards of a width after which deviations are attributed to the machine, not to its initial timing."""

_RENEWED = 8
"""Steps with evidence and without a draft after which prices of drafts are computed again."""

_DOUBT = 2.0
"""How much too high the initial timing of a width may be."""

_OUTLIER = 4.0
"""Upper limit of measured over expected drafting time."""

_MOST_ATTENTION = 0.1
"""Upper limit of the time that a column attends to its text, in idle forwards of the narrowest width."""


@attrs.frozen
class Price:
    """Extra time of a step with a draft over a plain one, in steps of plain decoding."""

    expected: float
    doubt: float = 0.0
    """By how much it may be less (:meth:`StepSeconds.doubt`)."""

    least: float = attrs.field(init=False)
    """What it may be at least."""

    @least.default
    def _without_doubt(self) -> float:
        return self.expected - self.doubt


@attrs.frozen
class _Step:
    """Seconds of a step of one width, without drafting."""

    forward: float
    """Of a forward without padding."""

    rest: float

    narrower: float
    """Of the slowest step of a narrower width."""

    def __call__(self, ratio: float) -> float:
        """Seconds where the forward takes *ratio* of one without padding."""
        # Wider steps take at least as long. If the machine has become slower since the wider ones
        # were timed, they would look cheap, and useless drafts worth their time.
        return max(self.narrower, self.forward * ratio + self.rest)


@attrs.define(eq=False)
class StepSeconds:
    """
    Seconds of a speculation step, learned from past steps.

    Forwards and the rest, such as sampling, are learned apart: so a width that was not used yet has its
    forward's idle time and the rest of the others. A forward with padding counts as one without, at the
    ratio that was timed.
    """

    _timed: dict[int, WidthSeconds] = attrs.field(factory=dict, init=False)
    """By width: an idle forward by its tokens."""

    _idle: dict[int, float] = attrs.field(factory=dict, init=False)
    """By width: seconds of an idle forward without padding."""

    _forward: dict[int, LearnedSeconds] = attrs.field(factory=dict, init=False)
    """By width that was used: seconds of the target without padding."""

    _rest: dict[int, LearnedSeconds] = attrs.field(factory=dict, init=False)
    """By width that was used: seconds of a step without target and drafting."""

    _widths: tuple[int, ...] = attrs.field(default=(), init=False)
    """Ascending; empty before :meth:`prepare`."""

    _prices: list[Price] = attrs.field(factory=list, init=False)
    """The newest :meth:`evidence_prices`; empty where they are to be computed again."""

    _plain_steps: int = attrs.field(default=0, init=False)
    """Steps without a draft since they were computed."""

    _draft: FittedLine = attrs.field(factory=FittedLine, init=False)
    """Drafting seconds where the step before had a draft too."""

    _catch_up: float | None = attrs.field(default=None, init=False)

    def prepare(self, decoder: AnyDecoder, exact_width: bool) -> None:
        """Time the widths of *decoder*; with *exact_width* every forward has the widest."""
        timed = time_widths(decoder)
        if exact_width:
            timed = [WidthSeconds(1, each.width, each.full, each.full) for each in timed[-1:]]
        widths = tuple(each.width for each in timed)
        # Times learned from steps are better than those of idle forwards.
        if widths != self._widths:
            self._widths, self._forward, self._rest, self._prices = widths, {}, {}, []
            self._timed = {each.width: each for each in timed}
            self._idle = {each.width: each.full for each in timed}

    def verify(self, length: int) -> float:
        """Seconds of a step without drafting, where the longest draft has *length* tokens."""
        return self._step(self._width(length))(self._ratio(length))

    def _step(self, width: int) -> "_Step":
        """A step of *width*; one that is not known takes the nearest one's time."""
        known = {*self._idle, *self._forward}
        if not known:
            # The unit is arbitrary.
            return _Step(1.0, 0.0, 0.0)
        nearest = _nearest(width, known)
        return _Step(
            self._forward_seconds(nearest),
            self._rest_seconds(nearest),
            max(
                (self._forward_seconds(each) + self._rest_seconds(each) for each in known if each < nearest),
                default=0.0,
            ),
        )

    def _ratio(self, length: int) -> float:
        """Of a forward with *length* draft tokens to one of its width without padding."""
        timed = self._timed.get(self._width(length))
        return 1.0 if timed is None else timed(min(length + 1, timed.width)) / timed.full

    def _rest_seconds(self, width: int) -> float:
        return self._rest[_nearest(width, self._rest)].seconds if self._rest else 0.0

    def _forward_seconds(self, width: int) -> float:
        if width in self._forward:
            return self._forward[width].seconds
        used = max((known for known in self._forward if known < width), default=None)
        if used not in self._idle:
            return self._idle[width]
        # Where a narrower forward is slower than an idle one, so is this; a wider one may have been timed
        # wrongly, and plain decoding must not look slow then.
        return self._forward[used].seconds * self._with_attention(width) / self._with_attention(used)

    def _with_attention(self, width: int) -> float:
        """Seconds of an idle forward, and of the attention to what the text has become longer by."""
        idle, narrowest = self._idle[width], min(self._idle)
        if narrowest not in self._forward:
            return idle
        more = self._forward[narrowest].seconds - self._idle[narrowest]
        return idle + width / narrowest * min(max(more, 0.0), _MOST_ATTENTION * self._idle[narrowest])

    def doubt(self, length: int) -> float:
        """By how much :meth:`verify` may be too high: a bad timing must not forbid an unused width."""
        seconds = self.verify(length)
        return (
            0.0
            if self._width(length) in self._forward
            else min(seconds - seconds / _DOUBT, seconds - self.verify(0))
        )

    def draft(self, length: int) -> float:
        """Seconds of drafting *length* tokens."""
        known = self._draft.slope or self._draft.intercept
        return self._draft(length) if known else _DRAFT_TOKEN_PRICE * self.verify(0) * length

    def evidence_prices(self, most: int) -> list[Price]:
        """
        Prices of drafts of 0 to *most* tokens of a drafter with evidence, which costs next to nothing.

        Only that of the narrowest width is in doubt: wider ones are tried when drafts have gained the price.
        They are computed after each draft, and else every few steps with evidence, since that takes as long
        as the drafter.
        """
        if len(self._prices) != most + 1:
            self._prices, self._plain_steps = self._priced(most), 0
        return self._prices

    def _priced(self, most: int) -> list[Price]:
        unit, prices, narrowest = self.verify(0), [Price(0.0)], self._width(1)
        in_doubt = narrowest not in self._forward
        for width, lengths in itertools.groupby(range(1, most + 1), self._width):
            step = self._step(width)
            for length in lengths:
                # The line is zero where no draft was timed.
                expected = (self._draft(length) + step(self._ratio(length))) / unit - 1
                doubt = self.doubt(length) / unit if in_doubt and width == narrowest else 0.0
                prices.append(Price(expected, doubt))
        return prices

    def catch_up(self) -> float:
        """Extra seconds of a draft after steps without one: a draft model is fed the tokens it missed."""
        return self.draft(1) if self._catch_up is None else self._catch_up

    def learn(self, outcome: SpeculationStep, gap: int) -> None:
        """Learn the times of a step, *gap* steps after the last one with a draft."""
        length = max(outcome.drafted, default=0)
        scored = length if outcome.longest is None else outcome.longest
        full = outcome.target_seconds / self._ratio(scored)
        self._learn_step(self._width(scored), full, outcome.other_seconds)
        self._plain_steps += 1
        if outcome.allowed or self._plain_steps >= _RENEWED:
            self._prices = []
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

    def _learn_step(self, width: int, target: float, rest: float) -> None:
        if width not in self._forward:
            expected = self._forward_seconds(width) if width in self._idle else target
            beside = self._rest_seconds(width) if self._rest else rest
            self._forward[width], self._rest[width] = LearnedSeconds(expected), LearnedSeconds(beside)
        forward = self._forward[width]
        ratio = forward.learn(target)
        self._learn_rest(width, rest)
        if forward.seen > _SETTLED:
            # Half of the deviation is attributed to the machine or the position, and applied to every width.
            others = ratio ** (LEARNING_RATE / 2)
            for known, other in self._forward.items():
                if known != width:
                    other.seconds *= others
            for known in self._idle:
                self._idle[known] *= others

    def _learn_rest(self, width: int, rest: float) -> None:
        before = self._rest[width].seconds
        self._rest[width].learn(rest)
        # It depends on the rows above all, and so changes at every width.
        for known, other in self._rest.items():
            if known != width:
                other.seconds *= self._rest[width].seconds / before

    def __str__(self) -> str:
        """Milliseconds by width, and of drafting."""
        known = sorted({*self._idle, *self._forward})
        widths = ", ".join(f"{1e3 * self.verify(width - 1):.2f} at width {width}" for width in known)
        draft, per_token = 1e3 * self.draft(0), 1e3 * (self.draft(1) - self.draft(0))
        return f"milliseconds: {widths or 'none timed'}; draft {draft:.2f} + {per_token:.2f} a token"


def _nearest(width: int, known: Iterable[int]) -> int:
    return min(known, key=lambda each: abs(each - width))
