"""Time of a speculation step: drafting by draft length, the rest by tokens."""

from collections.abc import Callable, Collection
from itertools import accumulate, pairwise

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
    """Extra time of a step with drafts over a plain one, in steps of plain decoding."""

    expected: float
    """If every row drafts."""

    doubt: float = 0.0
    """By how much it may be less (:meth:`StepSeconds.doubt`)."""

    by_share: tuple[tuple[float, float], ...] = ()
    """
    Shares of the rows that draft, ascending from 0 to 1, and what is expected then; lines lie between them.
    Empty where it is the same for any share.
    """

    def of(self, share: float) -> tuple[float, float]:
        """What is expected, and what it may be at least, if a *share* of the rows drafts."""
        expected = self.expected
        for (low, low_price), (high, high_price) in pairwise(self.by_share):
            if share <= high:
                expected = low_price + (share - low) / (high - low) * (high_price - low_price)
                break
        doubt = self.doubt * expected / self.expected if self.expected else 0.0
        return expected, expected - doubt


@attrs.frozen
class _Place:
    """An average number of tokens between two that are timed, which may be one."""

    fewest: int
    most: int
    share: float
    """Of :attr:`most`, from 0 to 1."""

    learned: int
    """The number, of the forward's own width, that its time is learned for."""

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
    the longest draft selects the width; tokens are the average of all rows, and where that is below the
    fewest of the width, a line to the plain step applies.
    """

    _idle: dict[int, float] = attrs.field(factory=dict, init=False)
    """By tokens: seconds of a forward when they were timed."""

    _forward: dict[int, LearnedSeconds] = attrs.field(factory=dict, init=False)
    """By those of these tokens that were used: seconds of the target."""

    _rest: dict[int, LearnedSeconds] = attrs.field(factory=dict, init=False)
    """Likewise: seconds of a step without target and drafting."""

    _ranges: tuple[tuple[int, int], ...] = attrs.field(default=(), init=False)
    """The timed tokens of each width, ascending: two, or one twice; empty before :meth:`prepare`."""

    _skips_padding: bool = attrs.field(default=False, init=False)
    """Whether a forward's time depends on its tokens."""

    _places: dict[int, _Place] = attrs.field(factory=dict, init=False)
    """By draft length, where all rows have it."""

    _settled: set[int] = attrs.field(factory=set, init=False)
    """The timed tokens whose time is no longer in doubt."""

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
            self._places, self._steps, self._settled = {}, {}, set()
            self._skips_padding = any(each.skips_padding for each in timed)
            self._idle = {each.fewest: max(each.with_fewest, LEAST) for each in timed}
            self._idle |= {each.width: max(each.full, LEAST) for each in timed}

    def verify(self, length: int) -> float:
        """Seconds of a step without drafting, where the draft of each row has *length* tokens."""
        return self._place(length).between(self._step_seconds)

    def _verify(self, length: int, tokens: float) -> float:
        """The same, where the longest draft has *length*, and a row so many *tokens* on average."""
        return self._place_of(length, tokens).between(self._step_seconds)

    def _step_seconds(self, tokens: int) -> float:
        """Seconds of a step without drafting, of a number of *tokens* that is timed."""
        if not self._steps:
            known = sorted({*self._idle, *self._forward})
            seconds = (self._forward_seconds(each) + self._rest_seconds(each) for each in known)
            # More tokens take at least as long. If the machine has become slower since they were timed, they
            # would look cheap, and useless drafts worth their time.
            self._steps = dict(zip(known, accumulate(seconds, max), strict=True))
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
            if self._place(length).learned in self._settled
            else min(seconds - seconds / _DOUBT, seconds - self.verify(0))
        )

    def draft(self, length: int) -> float:
        """Seconds of drafting *length* tokens."""
        return self._draft(length) if self._draft.known else _DRAFT_TOKEN_PRICE * self.verify(0) * length

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
        unit, prices, narrowest = self.verify(0), [Price(0.0)], self._range(1)
        for length in range(1, most + 1):
            doubt = self.doubt(length) / unit if self._range(length) == narrowest else 0.0
            # The line is zero where no draft was timed.
            drafting, shares = self._draft(length) / unit, list[tuple[float, float]]()
            if self._skips_padding:
                fewest = self._range(length)[0]
                tokens = [1, fewest, length + 1] if 1 < fewest <= length else [1, length + 1]
                shares = [
                    ((each - 1) / length, drafting + self._verify(length, each) / unit - 1) for each in tokens
                ]
            prices.append(Price(drafting + self.verify(length) / unit - 1, doubt, tuple(shares)))
        return prices

    def catch_up(self) -> float:
        """Extra seconds of a draft after steps without one: a draft model is fed the tokens it missed."""
        return self.draft(1) if self._catch_up is None else self._catch_up

    def learn(self, outcome: SpeculationStep, gap: int) -> None:
        """Learn the times of a step, *gap* steps after the last one with a draft."""
        length = max(outcome.drafted, default=0)
        scored = length if outcome.longest is None else outcome.longest
        place, target = self._place(scored), outcome.target_seconds
        # Without evidence all rows draft, and those that end earlier are not told apart.
        if outcome.evidence:
            tokens = sum(outcome.drafted) if outcome.total is None else outcome.total
            place = self._place_of(scored, 1 + tokens / len(outcome.evidence))
            if len(outcome.evidence) > 1 and scored:
                # Of a batch it may be that all rows never draft.
                self._settled.update(self._range(scored))
        self._settled.add(place.learned)
        if self._idle:
            target *= self._forward_seconds(place.learned) / place.between(self._forward_seconds)
        self._learn_step(place.learned, target, outcome.other_seconds)
        self._steps = {}
        self._plain_steps += 1
        if outcome.allowed or self._plain_steps >= _RENEWED:
            self._prices = []
        if not outcome.allowed:
            return
        if outcome.only_catches_up and self._catch_up is not None:
            # A chunk of a prompt: neither drafting nor what catching up a few steps takes.
            return
        if outcome.catching_up and not gap and self._catch_up is not None and self._draft.known:
            # The seconds of drafting include a prefill.
            return
        late = outcome.draft_seconds - self.draft(length)
        if (gap or self._catch_up is None) and late > 0:
            # Clip: a whole prompt, or an outlier, is not representative of catching up a few steps.
            self._catch_up = min(late, _OUTLIER * self.catch_up())
        else:
            most = _OUTLIER * self.draft(length)
            self._draft.learn(length, min(outcome.draft_seconds, most) if most else outcome.draft_seconds)

    def _range(self, length: int) -> tuple[int, int]:
        """The timed tokens of the width that drafts of *length* tokens need: the fewest and the most."""
        fitting = (each for each in self._ranges if each[1] > length)
        return next(fitting, self._ranges[-1] if self._ranges else (length + 1, length + 1))

    def _place(self, length: int) -> _Place:
        """Where a step lies in which the draft of each row has *length* tokens."""
        place = self._places.get(length)
        if place is None:
            place = self._places[length] = self._place_of(length, length + 1)
        return place

    def _place_of(self, length: int, tokens: float) -> _Place:
        """Where a step lies whose longest draft has *length* tokens, and whose rows *tokens* on average."""
        fewest, most = self._range(length)
        if not self._skips_padding or fewest == most <= tokens:
            return _Place(most, most, 1.0, most)
        if tokens < fewest:
            return _Place(1, fewest, (tokens - 1) / (fewest - 1), fewest)
        share = min((tokens - fewest) / (most - fewest), 1.0)
        return _Place(fewest, most, share, most if share >= 0.5 else fewest)

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
