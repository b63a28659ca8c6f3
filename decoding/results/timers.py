"""The clock of a run, which fills in the seconds of its statistics."""

import time

from .statistics import Statistics


class Timers:
    """
    Measure one run, from construction on.

    There are several phases and a pause in a round, so these are plain classes.
    """

    __slots__ = ("_since", "statistics")

    def __init__(self, statistics: Statistics) -> None:
        self.statistics, self._since = statistics, time.perf_counter()

    def phase(self, name: str) -> "Phase":
        """Add the time that the body takes to *name*."""
        return Phase(self.statistics.seconds, name)

    def paused(self) -> "Pause":
        """Leave the time that the body takes out of the run's: it is the consumer's."""
        return Pause(self)

    def round(self) -> "RoundClock":
        """A clock of one round, which begins now."""
        return RoundClock(self.statistics.seconds)

    def resume(self) -> None:
        """Count the time from now on."""
        self._since = time.perf_counter()

    def touch(self) -> None:
        """Note the time: of the first token, and of the latest."""
        now, counted = time.perf_counter(), self.statistics
        counted.total_seconds, self._since = counted.total_seconds + now - self._since, now
        if counted.first_token_seconds is None and counted.tokens:
            counted.first_token_seconds = counted.total_seconds


class Phase:
    """A stretch of time that belongs to a name."""

    __slots__ = ("_name", "_seconds", "_start")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        spent = time.perf_counter() - self._start
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + spent


class Pause:
    """A stretch of time that belongs to the consumer."""

    __slots__ = ("_timers",)

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def __enter__(self) -> None:
        self._timers.touch()

    def __exit__(self, *error: object) -> None:
        self._timers.resume()


class RoundClock:
    """What a round has spent since the clock was made, given the *seconds* of its run's phases."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._started, self._seconds, self._before = time.perf_counter(), seconds, dict(seconds)

    def leave_out(self, seconds: float) -> None:
        """Not count *seconds* of that: those of waiting for another user of a decoder."""
        self._started += seconds

    def read(self) -> dict[str, float]:
        """Seconds of drafter, target and everything else, as :class:`~..protocols.SpeculationStep` names them."""
        draft, target = (
            self._seconds.get(phase, 0.0) - self._before.get(phase, 0.0) for phase in ("draft", "target")
        )
        other = time.perf_counter() - self._started - draft - target
        return {"draft_seconds": draft, "target_seconds": target, "other_seconds": other}
