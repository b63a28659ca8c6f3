"""What a run counted."""

import contextlib
import time
from collections.abc import Iterator

import attrs


@attrs.define(eq=False)
class Statistics:
    """
    Counts and seconds of one run.

    What a stop cut off is counted nowhere.
    """

    tokens: int = 0
    """New tokens, of all rows."""

    forwards: int = 0
    """Forwards of the target, prompts included."""

    steps: int = 0
    """Verifications, summed over the rows: each row's target forwards after its first token."""

    drafted: list[int] = attrs.field(factory=list)
    """Guesses by their place in the draft."""

    accepted: list[int] = attrs.field(factory=list)
    """Those of them that stood."""

    seconds: dict[str, float] = attrs.field(factory=dict)
    """By phase: ``"prefill"``, ``"draft"``, ``"target"``, ``"choose"``, ``"stop"``."""

    first_token_seconds: float | None = None
    """From the call to the first token of any row."""

    total_seconds: float = 0.0
    """From the call to the end."""

    _started: float = attrs.field(factory=time.perf_counter, init=False, repr=False)

    @property
    def mean_accepted_length(self) -> float:
        """τ: accepted guesses + 1 per target forward of a row; 1 without a draft."""
        return 1.0 + sum(self.accepted) / self.steps if self.steps else 1.0

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all rows per second of the whole run."""
        return self.tokens / self.total_seconds if self.total_seconds else 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time that the body takes to *name*."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def record(self, tokens: int, drafted: int, accepted: int) -> None:
        """Count one verification of one row: *tokens* kept, and the draft's share of them."""
        self.steps += 1
        self.tokens += tokens
        missing = drafted - len(self.drafted)
        self.drafted += [0] * missing
        self.accepted += [0] * missing
        for i in range(drafted):
            self.drafted[i] += 1
            self.accepted[i] += i < accepted

    def touch(self) -> None:
        """Note the time: of the first token, and of the latest."""
        self.total_seconds = time.perf_counter() - self._started
        if self.first_token_seconds is None and self.tokens:
            self.first_token_seconds = self.total_seconds


class Clock:
    """What has been spent since it was made."""

    def __init__(self, statistics: Statistics) -> None:
        self._started, self._seconds = time.perf_counter(), statistics.seconds
        self._before = dict(statistics.seconds)

    def read(self) -> dict[str, float]:
        """Seconds of drafter, target and everything else, as :class:`~.protocols.Round` names them."""
        draft, target = (
            self._seconds.get(phase, 0.0) - self._before.get(phase, 0.0) for phase in ("draft", "target")
        )
        other = time.perf_counter() - self._started - draft - target
        return {"draft_seconds": draft, "target_seconds": target, "other_seconds": other}
