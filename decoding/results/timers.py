"""Timers of a run, which fill in the seconds of its statistics."""

import time

from .statistics import Statistics


class Timers:
    """
    Measure one run, from construction on.

    Each step has several phases and a pause, so these are plain classes for speed.
    """

    __slots__ = ("_since", "statistics")

    def __init__(self, statistics: Statistics) -> None:
        self.statistics, self._since = statistics, time.perf_counter()

    def phase(self, name: str) -> "Phase":
        """Add the body's time to phase *name*."""
        return Phase(self.statistics.seconds, name)

    def paused(self) -> "Pause":
        """Exclude the body's time, which is the consumer's, from the run."""
        return Pause(self)

    def step_clock(self) -> "StepClock":
        """A clock of one step, which starts now."""
        return StepClock(self.statistics.seconds)

    def resume(self) -> None:
        """Start counting again."""
        self._since = time.perf_counter()

    def touch(self) -> None:
        """Update the total time and the time to the first token."""
        now, counted = time.perf_counter(), self.statistics
        counted.total_seconds, self._since = counted.total_seconds + now - self._since, now
        if counted.first_token_seconds is None and counted.tokens:
            counted.first_token_seconds = counted.total_seconds


class Phase:
    """A context manager that adds its body's time to a phase."""

    __slots__ = ("_name", "_seconds", "_start")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        spent = time.perf_counter() - self._start
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + spent


class Pause:
    """A context manager whose body's time is not counted."""

    __slots__ = ("_timers",)

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def __enter__(self) -> None:
        self._timers.touch()

    def __exit__(self, *error: object) -> None:
        self._timers.resume()


class StepClock:
    """The time of one step since construction, given the *seconds* of its run's phases."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._started, self._seconds, self._before = time.perf_counter(), seconds, dict(seconds)

    def leave_out(self, seconds: float) -> None:
        """Exclude *seconds*: of waiting for another user of the decoder, of other requests' prompts."""
        self._started += seconds

    def read(self) -> dict[str, float]:
        """The seconds of drafter, target and the rest, by their names in a SpeculationStep."""
        draft, target = (
            self._seconds.get(phase, 0.0) - self._before.get(phase, 0.0) for phase in ("draft", "target")
        )
        other = time.perf_counter() - self._started - draft - target
        return {"draft_seconds": draft, "target_seconds": target, "other_seconds": other}
