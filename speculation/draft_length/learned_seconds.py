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

LEAST = 1e-9
"""Lower limit, for times that the clock measured as 0."""


@attrs.define(eq=False)
class LearnedSeconds:
    """
    Seconds of some work, learned from measurements.

    The first ones weigh more than later ones. Outliers are clipped, so that a slow one changes little.
    """

    seconds: float
    """Initially a first estimate or measurement."""

    seen: int = 0
    """Number of measurements."""

    def __attrs_post_init__(self) -> None:
        """Raise the seconds to the lower limit, since they divide."""
        self.seconds = max(self.seconds, LEAST)

    def learn(self, measured: float) -> float:
        """Add a measurement; return its ratio to what was expected, clipped."""
        measured = max(measured, LEAST)
        if self.seen < _NEW and measured < self.seconds / _MAX_RATIO:
            # Interruptions only add.
            self.seconds = measured
        ratio = min(max(measured / self.seconds, 1 / _MAX_RATIO), _MAX_RATIO)
        self.seen += 1
        self.seconds *= ratio ** max(LEARNING_RATE, 1 / (self.seen + _FIRST_ESTIMATE))
        return ratio
