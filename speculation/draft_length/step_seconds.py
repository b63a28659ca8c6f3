"""Time of a speculation step: drafting by draft length, the rest by tokens."""

import attrs

from ...decoding.optional_protocols import AnyDecoder
from ...decoding.protocols import SpeculationStep
from .fitted_line import FittedLine
from .learned_seconds import LEAST
from .price import Price
from .timed_widths import time_widths
from .token_ranges import TokenRanges
from .verification_seconds import VerificationSeconds

_DRAFT_TOKEN_PRICE = 0.1
"""Prior time of a draft token, in steps of plain decoding."""

_RENEWED = 8
"""Steps with evidence and without a draft after which prices of drafts are computed again."""

_DOUBT = 2.0
"""How much too high the initial timing of a width may be."""

_OUTLIER = 4.0
"""Upper limit of measured over expected drafting time."""


@attrs.define(eq=False)
class StepSeconds:
    """
    Seconds of a speculation step, learned from past steps.

    What a step takes beside drafting is learned by tokens
    (:class:`.verification_seconds.VerificationSeconds`). Where padding takes less time than tokens, it is
    learned for the fewest and for the most tokens of each width, and between these lies a line
    (:class:`.token_ranges.TokenRanges`). Drafting is a line by tokens.
    """

    _ranges: TokenRanges = attrs.field(factory=TokenRanges, init=False)
    """The timed tokens of each width; none before :meth:`prepare`."""

    _verification: VerificationSeconds = attrs.field(factory=VerificationSeconds, init=False)

    _settled: set[int] = attrs.field(factory=set, init=False)
    """The timed tokens whose time is no longer in doubt."""

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
        if ranges != self._ranges.ranges:
            self._ranges = TokenRanges(ranges, any(each.skips_padding for each in timed))
            idle = {each.fewest: max(each.with_fewest, LEAST) for each in timed}
            idle |= {each.width: max(each.full, LEAST) for each in timed}
            self._verification = VerificationSeconds(idle)
            self._settled, self._prices = set(), []

    def verify(self, length: int) -> float:
        """Seconds of a step without drafting, where the draft of each row has *length* tokens."""
        return self._ranges.place(length).between(self._verification.step)

    def doubt(self, length: int) -> float:
        """By how much :meth:`verify` may be too high: a bad timing must not forbid what was not used."""
        seconds = self.verify(length)
        return (
            0.0
            if self._ranges.place(length).learned in self._settled
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
        unit, prices, narrowest = self.verify(0), [Price(0.0)], self._ranges.of(1)
        for length in range(1, most + 1):
            doubt = self.doubt(length) / unit if self._ranges.of(length) == narrowest else 0.0
            # The line is zero where no draft was timed.
            drafting, shares = self._draft(length) / unit, list[tuple[float, float]]()
            if self._ranges.skips_padding:
                fewest = self._ranges.of(length)[0]
                tokens = [1, fewest, length + 1] if 1 < fewest <= length else [1, length + 1]
                places = [self._ranges.place_of(length, each) for each in tokens]
                steps = [place.between(self._verification.step) / unit for place in places]
                shares = [
                    ((each - 1) / length, drafting + step - 1)
                    for each, step in zip(tokens, steps, strict=True)
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
        place, target = self._ranges.place(scored), outcome.target_seconds
        # Without evidence all rows draft, and those that end earlier are not told apart.
        if outcome.evidence:
            tokens = sum(outcome.drafted) if outcome.total is None else outcome.total
            place = self._ranges.place_of(scored, 1 + tokens / len(outcome.evidence))
            if len(outcome.evidence) > 1 and scored:
                # Of a batch it may be that all rows never draft.
                self._settled.update(self._ranges.of(scored))
        self._settled.add(place.learned)
        if self._verification.idle:
            forward = self._verification.forward
            target *= forward(place.learned) / place.between(forward)
        self._verification.learn(place.learned, target, outcome.other_seconds)
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

    def __str__(self) -> str:
        """Milliseconds by tokens, and of drafting."""
        known = self._verification.known
        times = ", ".join(f"{1e3 * self.verify(tokens - 1):.2f} for {tokens}" for tokens in known)
        draft, per_token = 1e3 * self.draft(0), 1e3 * (self.draft(1) - self.draft(0))
        return f"milliseconds by tokens: {times or 'none timed'}; draft {draft:.2f} + {per_token:.2f} a token"
