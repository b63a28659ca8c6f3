"""The loop of a campaign: one case a seed until its minutes are over."""

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

SECONDS_A_CASE = 60
MOST_FINDINGS = 20


class TookTooLong(BaseException):  # not an Exception: no case may expect it
    """Raised in a case that does not end."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise :class:`TookTooLong` after :data:`SECONDS_A_CASE`."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"not done within {SECONDS_A_CASE} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS_A_CASE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_campaign(config: pytest.Config, case: Callable[[int], str]) -> None:
    """
    Run *case* for one seed after the other, as long as ``--fuzz-minutes`` says.

    Args:
        config: With the options of campaigns.

        case: A seed to the kind of its outcome, for the counts. What it raises is a finding.

    Raises:
        AssertionError: The findings, the first of each kind, by their seeds.
    """
    first = seed = config.getoption("--fuzz-seed")
    outcomes, findings = Counter[str](), dict[str, str]()
    until = time.monotonic() + 60 * config.getoption("--fuzz-minutes")
    while time.monotonic() < until and len(findings) < MOST_FINDINGS:
        try:
            with limited():
                outcomes[case(seed)] += 1
        except (Exception, TookTooLong) as error:
            outcomes["finding"] += 1
            message = f"{type(error).__name__}: {error}"
            kind = re.split(r", of |: row", message)[0][:150]
            findings.setdefault(kind, f"seed {seed}: {message:.2000}")
        seed += 1
    print(dict(sorted(outcomes.items())), f"seeds {first} to {seed - 1}")
    assert not findings, "\n".join(findings.values())
