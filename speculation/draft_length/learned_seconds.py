"""Seconds of some work, learned from measurements."""

import attrs

_MAX_RATIO = 1.25
"""Upper limit of measured over expected time."""

LEARNING_RATE = 0.125
"""Exponent by which a measured ratio updates an estimate, after the first measurements."""

_FIRST_ESTIMATE = 3
"""Weight of the first estimate, in measurements."""

_NEW = 4
"""Measurements in which a faster one replaces the first estimate."""


def _at_least(seconds: float) -> float:
    """*seconds*, or a nanosecond where the clock's resolution gave 0."""
    return max(seconds, 1e-9)


@attrs.define(eq=False)
class LearnedSeconds:
    """
    Seconds of some work, learned from measurements.

    The first ones weigh more than later ones. Outliers are clipped, so that a slow one changes little.
    """

    seconds: float = attrs.field(converter=_at_least)
    """Initially a first estimate or measurement."""

    seen: int = 0
    """Number of measurements."""

    def learn(self, measured: float) -> float:
        """Add a measurement; return its ratio to what was expected, clipped."""
        measured = _at_least(measured)
        if self.seen < _NEW and measured < self.seconds / _MAX_RATIO:
            # Interruptions only add.
            self.seconds = measured
        ratio = min(max(measured / self.seconds, 1 / _MAX_RATIO), _MAX_RATIO)
        self.seen += 1
        self.seconds *= ratio ** max(LEARNING_RATE, 1 / (self.seen + _FIRST_ESTIMATE))
        return ratio
