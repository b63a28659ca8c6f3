"""Time of a speculation step: drafting by draft length, the rest by tokens."""

import itertools
from collections.abc import Callable, Collection

import attrs

from ...decoding.optional_protocols import AnyDecoder
from ...decoding.protocols import SpeculationStep
from .fitted_line import FittedLine
from .learned_seconds import LEARNING_RATE, LEAST, LearnedSeconds
from .timed_widths import time_widths

_DRAFT_TOKEN_PRICE = 0.1
"""Prior time of a draft token, in steps of plain decoding."""

_SETTLED = 64
"""Forwards after which deviations of their time are attributed to the machine, not to the initial timing."""

_RENEWED = 8
"""Steps with evidence and without a draft after which prices of drafts are computed again."""

_DOUBT = 2.0
"""How much too high the initial timing of a width may be."""

_OUTLIER = 4.0
"""Upper limit of measured over expected drafting time."""

_SLOWER = 0.5
"""
Exponent by which more tokens are slower, where fewer are slower than they were timed.

Two cores of an AMD EPYC have two states: in one a forward of a token takes 1.5 times as long as in the other,
and one of nine tokens as long.
"""

_MOST_ATTENTION = 0.1
"""Upper limit of the time that a column attends to its text, in idle forwards of the narrowest width."""


@attrs.frozen
class Price:
    """Extra time of a step with a draft over a plain one, in steps of plain decoding."""

    expected: float
    """If every row drafts."""

    doubt: float = 0.0
    """By how much it may be less (:meth:`StepSeconds.doubt`)."""

    of_tokens: float = 0.0
    """What of *expected* is in proportion to the share of rows that draft."""

    def of(self, share: float) -> tuple[float, float]:
        """What is expected, and what it may be at least, if a *share* of the rows drafts."""
        expected = max(self.expected - (1 - share) * self.of_tokens, 0.0)
        return expected, max(expected - self.doubt, 0.0)


@attrs.frozen
class _Place:
    """A number of tokens between two that are timed, which may be one."""

    fewest: int
    most: int
    share: float
    """Of :attr:`most`, up to 1; below 0 where some rows have fewer tokens than :attr:`fewest`."""

    @property
    def nearest(self) -> int:
        """The nearer one of the two."""
        return self.most if self.share >= 0.5 else self.fewest

    def at(self, tokens: float) -> "_Place":
        """The same width, where a row has so many *tokens* on average."""
        if self.fewest == self.most:
            return self
        return attrs.evolve(self, share=min((tokens - self.fewest) / (self.most - self.fewest), 1.0))

    def between(self, seconds: Callable[[int], float]) -> float:
        """The *seconds* of the two, weighted."""
        if self.fewest == self.most:
            return seconds(self.most)
        return (1 - self.share) * seconds(self.fewest) + self.share * seconds(self.most)


@attrs.define(eq=False)
class StepSeconds:
    """
    Seconds of a speculation step, learned from past steps.

    Forwards and the rest, such as sampling, are learned apart: so a width that was not used yet has its
    forward's idle time and the rest of the others. Where padding takes less time than tokens, they are
    learned for the fewest and for the most tokens of each width, and between these lies a line. The row with
    the longest draft selects the width; tokens are the average of all rows.
    """

    _idle: dict[int, float] = attrs.field(factory=dict, init=False)
    """By tokens: seconds of a forward when they were timed."""

    _forward: dict[int, LearnedSeconds] = attrs.field(factory=dict, init=False)
    """By those of these tokens that were used: seconds of the target."""

    _rest: dict[int, LearnedSeconds] = attrs.field(factory=dict, init=False)
    """Likewise: seconds of a step without target and drafting."""

    _ranges: tuple[tuple[int, int], ...] = attrs.field(default=(), init=False)
    """The timed tokens of each width, ascending: two, or one twice; empty before :meth:`prepare`."""

    _places: dict[int, _Place] = attrs.field(factory=dict, init=False)
    """By draft length."""

    _steps: dict[int, float] = attrs.field(factory=dict, init=False)
    """By tokens, ascending: seconds of a step without drafting; empty where they are to be computed again."""

    _prices: list[Price] = attrs.field(factory=list, init=False)
    """The newest :meth:`evidence_prices`; empty where they are to be computed again."""

    _plain_steps: int = attrs.field(default=0, init=False)
    """Steps without a draft since they were computed."""

    _draft: FittedLine = attrs.field(factory=FittedLine, init=False)
    """Drafting seconds where the step before had a draft too."""

    _catch_up: float | None = attrs.field(default=None, init=False)

    def prepare(self, decoder: AnyDecoder, exact_width: bool) -> None:
        """Time the widths of *decoder*; with *exact_width* every forward has the widest."""
        timed = time_widths(decoder, exact_width)
        ranges = tuple((each.fewest, each.width) for each in timed)
        # Times learned from steps are better than those of idle forwards.
        if ranges != self._ranges:
            self._ranges, self._forward, self._rest, self._prices = ranges, {}, {}, []
            self._places, self._steps = {}, {}
            self._idle = {each.fewest: max(each.with_fewest, LEAST) for each in timed}
            self._idle |= {each.width: max(each.full, LEAST) for each in timed}

    def verify(self, length: int) -> float:
        """Seconds of a step without drafting, where the longest draft has *length* tokens."""
        return self._place(length).between(self._step_seconds)

    def _step_seconds(self, tokens: int) -> float:
        """Seconds of a step without drafting, of a number of *tokens* that is timed."""
        if not self._steps:
            known = sorted({*self._idle, *self._forward})
            seconds = (self._forward_seconds(each) + self._rest_seconds(each) for each in known)
            # More tokens take at least as long. If the machine has become slower since they were timed, they
            # would look cheap, and useless drafts worth their time.
            self._steps = dict(zip(known, itertools.accumulate(seconds, max), strict=True))
        # A number that is not known takes the nearest one's time; without any the unit is arbitrary.
        return self._steps[_nearest(tokens, self._steps)] if self._steps else 1.0

    def _rest_seconds(self, tokens: int) -> float:
        return self._rest[_nearest(tokens, self._rest)].seconds if self._rest else 0.0

    def _forward_seconds(self, tokens: int) -> float:
        if tokens in self._forward:
            return self._forward[tokens].seconds
        used = max((known for known in self._forward if known < tokens), default=None)
        if used not in self._idle:
            return self._idle[tokens]
        # Where fewer tokens are slower than they were timed, so are these, if less; more tokens may have been
        # timed wrongly, and plain decoding must not look slow then.
        slower = self._forward[used].seconds / self._with_attention(used)
        return self._with_attention(tokens) * (slower**_SLOWER if slower > 1 else slower)

    def _with_attention(self, tokens: int) -> float:
        """Seconds of an idle forward, and of the attention to what the text has become longer by."""
        idle, narrowest = self._idle[tokens], min(self._idle)
        if narrowest not in self._forward:
            return idle
        more = self._forward[narrowest].seconds - self._idle[narrowest]
        return idle + tokens / narrowest * min(max(more, 0.0), _MOST_ATTENTION * self._idle[narrowest])

    def doubt(self, length: int) -> float:
        """By how much :meth:`verify` may be too high: a bad timing must not forbid what was not used."""
        seconds = self.verify(length)
        return (
            0.0
            if self._place(length).nearest in self._forward
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
        unit, prices, narrowest = self.verify(0), [Price(0.0)], self._place(1).most
        for length in range(1, most + 1):
            doubt = self.doubt(length) / unit if self._place(length).most == narrowest else 0.0
            # The line is zero where no draft was timed.
            seconds, of_tokens = self._draft(length) + self.verify(length), length * self._a_token(length)
            prices.append(Price(seconds / unit - 1, doubt, of_tokens / unit))
        return prices

    def _a_token(self, length: int) -> float:
        """Seconds of one more token in each row, where the longest draft has *length*."""
        place = self._place(length)
        if place.fewest == place.most:
            return 0.0
        return (self._step_seconds(place.most) - self._step_seconds(place.fewest)) / (
            place.most - place.fewest
        )

    def catch_up(self) -> float:
        """Extra seconds of a draft after steps without one: a draft model is fed the tokens it missed."""
        return self.draft(1) if self._catch_up is None else self._catch_up

    def learn(self, outcome: SpeculationStep, gap: int) -> None:
        """Learn the times of a step, *gap* steps after the last one with a draft."""
        length = max(outcome.drafted, default=0)
        scored = length if outcome.longest is None else outcome.longest
        tokens = sum(outcome.drafted) if outcome.total is None else outcome.total
        place = self._place(scored).at(1 + tokens / len(outcome.drafted))
        target = outcome.target_seconds
        if self._idle:
            # No forward is expected to be faster than the narrowest, which a line could end below.
            expected = max(place.between(self._forward_seconds), self._forward_seconds(min(self._idle)))
            target *= self._forward_seconds(place.nearest) / expected
        self._learn_step(place.nearest, target, outcome.other_seconds)
        self._steps = {}
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

    def _place(self, length: int) -> _Place:
        """Where a step with *length* draft tokens lies between tokens that are timed."""
        place = self._places.get(length)
        if place is None:
            tokens = length + 1
            fitting = (each for each in self._ranges if each[1] >= tokens)
            fewest, most = next(fitting, self._ranges[-1] if self._ranges else (tokens, tokens))
            share = 1.0 if fewest == most else min((tokens - fewest) / (most - fewest), 1.0)
            place = self._places[length] = _Place(fewest, most, share)
        return place

    def _learn_step(self, tokens: int, target: float, rest: float) -> None:
        if tokens not in self._forward:
            expected = self._forward_seconds(tokens) if tokens in self._idle else target
            beside = self._rest_seconds(tokens) if self._rest else rest
            self._forward[tokens], self._rest[tokens] = LearnedSeconds(expected), LearnedSeconds(beside)
        forward = self._forward[tokens]
        ratio = forward.learn(target)
        self._learn_rest(tokens, rest)
        if forward.seen > _SETTLED:
            # Half of the deviation is attributed to the machine or the position, and applied to all others.
            others = ratio ** (LEARNING_RATE / 2)
            for known, other in self._forward.items():
                if known != tokens:
                    other.seconds *= others
            for known in self._idle:
                self._idle[known] *= others

    def _learn_rest(self, tokens: int, rest: float) -> None:
        before = self._rest[tokens].seconds
        self._rest[tokens].learn(rest)
        # It depends on the rows above all, and so changes for all others.
        for known, other in self._rest.items():
            if known != tokens:
                other.seconds *= self._rest[tokens].seconds / before

    def __str__(self) -> str:
        """Milliseconds by tokens, and of drafting."""
        known = sorted({*self._idle, *self._forward})
        times = ", ".join(f"{1e3 * self.verify(tokens - 1):.2f} for {tokens}" for tokens in known)
        draft, per_token = 1e3 * self.draft(0), 1e3 * (self.draft(1) - self.draft(0))
        return f"milliseconds by tokens: {times or 'none timed'}; draft {draft:.2f} + {per_token:.2f} a token"


def _nearest(tokens: int, known: Collection[int]) -> int:
    return tokens if tokens in known else min(known, key=lambda each: abs(each - tokens))
