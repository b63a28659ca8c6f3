"""A line through measurements."""

import attrs

_ORIGIN = 0.1
"""Weight of the origin (no draft tokens, no time), in measurements of one draft token."""


@attrs.define(eq=False)
class FittedLine:
    """
    Linear model of drafting seconds by number of draft tokens.

    Least squares of the relative errors, with exponential forgetting. Intercept and slope are
    >= 0; if all drafts had one length the line goes through the origin.
    """

    intercept: float = attrs.field(default=0.0, init=False)
    slope: float = attrs.field(default=0.0, init=False)
    # Weighted sums of 1, x, x², y and xy. The origin keeps a small constant weight.
    _w: float = attrs.field(default=0.0, init=False)
    _x: float = attrs.field(default=0.0, init=False)
    _xx: float = attrs.field(default=0.0, init=False)
    _y: float = attrs.field(default=0.0, init=False)
    _xy: float = attrs.field(default=0.0, init=False)

    def __call__(self, x: float) -> float:
        """The line at *x*."""
        return self.intercept + self.slope * x

    @property
    def known(self) -> bool:
        """Whether a measurement other than zero was added."""
        return bool(self.slope or self.intercept)

    def learn(self, x: float, y: float) -> None:
        """Add a measurement."""
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
