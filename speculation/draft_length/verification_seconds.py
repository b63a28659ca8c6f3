"""Time of a step without drafting, by tokens."""

from collections.abc import Collection
from itertools import accumulate

import attrs

from .learned_seconds import LEARNING_RATE, LearnedSeconds

_SETTLED = 64
"""Forwards after which deviations of their time are attributed to the machine, not to the initial timing."""

_SLOWER = 0.5
"""
Exponent by which more tokens are slower, where fewer are slower than they were timed.

Two cores of an AMD EPYC have two states: in one a forward of a token takes 1.5 times as long as in the other,
and one of nine tokens as long.
"""

_MOST_ATTENTION = 0.1
"""Upper limit of the time that a column attends to its text, in idle forwards of the narrowest width."""


@attrs.define(eq=False)
class VerificationSeconds:
    """
    Seconds of a step without drafting, learned from past steps.

    Forwards and the rest, such as sampling, are learned apart: so a width that was not used yet has its
    forward's idle time and the rest of the others.
    """

    idle: dict[int, float] = attrs.field(factory=dict)
    """By tokens: seconds of a forward when they were timed."""

    _forward: dict[int, LearnedSeconds] = attrs.field(factory=dict, init=False)
    """By those of these tokens that were used: seconds of the target."""

    _rest: dict[int, LearnedSeconds] = attrs.field(factory=dict, init=False)
    """Likewise: seconds of a step without target and drafting."""

    _steps: dict[int, float] = attrs.field(factory=dict, init=False)
    """By tokens, ascending: seconds of a step without drafting; empty where they are to be computed again."""

    @property
    def known(self) -> list[int]:
        """The numbers of tokens whose time is known, ascending."""
        return sorted({*self.idle, *self._forward})

    def step(self, tokens: int) -> float:
        """Seconds of a step without drafting, of a number of *tokens* that is timed."""
        if not self._steps:
            known = self.known
            seconds = (self.forward(each) + self._rest_seconds(each) for each in known)
            # More tokens take at least as long. If the machine has become slower since they were timed, they
            # would look cheap, and useless drafts worth their time.
            self._steps = dict(zip(known, accumulate(seconds, max), strict=True))
        # A number that is not known takes the nearest one's time; without any the unit is arbitrary.
        return self._steps[_nearest(tokens, self._steps)] if self._steps else 1.0

    def _rest_seconds(self, tokens: int) -> float:
        return self._rest[_nearest(tokens, self._rest)].seconds if self._rest else 0.0

    def forward(self, tokens: int) -> float:
        """Seconds of a forward of a number of *tokens* that was timed."""
        if tokens in self._forward:
            return self._forward[tokens].seconds
        used = max((known for known in self._forward if known < tokens), default=None)
        if used not in self.idle:
            return self.idle[tokens]
        # Where fewer tokens are slower than they were timed, so are these, if less; more tokens may have been
        # timed wrongly, and plain decoding must not look slow then.
        slower = self._forward[used].seconds / self._with_attention(used)
        return self._with_attention(tokens) * (slower**_SLOWER if slower > 1 else slower)

    def _with_attention(self, tokens: int) -> float:
        """Seconds of an idle forward, and of the attention to what the text has become longer by."""
        idle, narrowest = self.idle[tokens], min(self.idle)
        if narrowest not in self._forward:
            return idle
        more = self._forward[narrowest].seconds - self.idle[narrowest]
        return idle + tokens / narrowest * min(max(more, 0.0), _MOST_ATTENTION * self.idle[narrowest])

    def learn(self, tokens: int, target: float, rest: float) -> None:
        """
        Learn a step.

        Args:
            tokens: Of its forward, a number that is timed.

            target: Seconds of the forward.

            rest: Seconds of the step without target and drafting.
        """
        self._steps = {}
        if tokens not in self._forward:
            expected = self.forward(tokens) if tokens in self.idle else target
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
            for known in self.idle:
                self.idle[known] *= others

    def _learn_rest(self, tokens: int, rest: float) -> None:
        before = self._rest[tokens].seconds
        self._rest[tokens].learn(rest)
        # It depends on the rows above all, and so changes for all others.
        for known, other in self._rest.items():
            if known != tokens:
                other.seconds *= self._rest[tokens].seconds / before


def _nearest(tokens: int, known: Collection[int]) -> int:
    return tokens if tokens in known else min(known, key=lambda each: abs(each - tokens))
