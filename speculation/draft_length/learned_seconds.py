"""Seconds of some work, learned from measurements."""

import statistics

import attrs

_MAX_RATIO = 1.25
"""Upper limit of measured over expected time."""

LEARNING_RATE = 0.125
"""Exponent by which a measured ratio updates an estimate, after the first measurements."""

_FIRST_ESTIMATE = 3
"""Weight of the first estimate, in measurements."""

_NEW = 4
"""The first measurements, of which and of the first estimate the median is taken."""

LEAST = 1e-9
"""Lower limit, for times that the clock measured as 0."""


@attrs.define(eq=False)
class LearnedSeconds:
    """
    Seconds of some work, learned from measurements.

    The first ones weigh more than later ones: the first estimate may be of a machine in another state.
    Outliers are clipped, so that a slow one changes little.
    """

    seconds: float
    """Initially a first estimate or measurement."""

    seen: int = 0
    """Number of measurements."""

    _first: list[float] = attrs.field(factory=list, init=False)
    """The first estimate and the first measurements."""

    def __attrs_post_init__(self) -> None:
        """Raise the seconds to the lower limit, since they divide."""
        self.seconds = max(self.seconds, LEAST)
        self._first.append(self.seconds)

    def learn(self, measured: float) -> float:
        """Add a measurement; return its ratio to what was expected, clipped."""
        measured = max(measured, LEAST)
        ratio = min(max(measured / self.seconds, 1 / _MAX_RATIO), _MAX_RATIO)
        self.seen += 1
        if self.seen <= _NEW:
            self._first.append(measured)
            # Of two in the middle the lower one, as interruptions only add.
            self.seconds = statistics.median_low(self._first)
        else:
            self.seconds *= ratio ** max(LEARNING_RATE, 1 / (self.seen + _FIRST_ESTIMATE))
        return ratio
