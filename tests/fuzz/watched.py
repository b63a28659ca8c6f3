"""Cases of a campaign, each under a watch: what hangs, or leaves a thread behind, is a finding."""

import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any


class HangsError(Exception):
    """A case did not end; its thread cannot be stopped, so the campaign ends with it."""


def watched(case: Callable[[int], str], seed: int, patience: float) -> str:
    """
    Run *case* in a thread of its own; its outcome.

    Raises:
        HangsError: It takes too long; the message has the stacks of all threads.

        AssertionError: It failed, or left a thread behind.
    """
    before, found, errors = set(threading.enumerate()), [], []

    def run() -> None:
        try:
            found.append(case(seed))
        except BaseException:
            errors.append(traceback.format_exc())

    thread = threading.Thread(target=run, daemon=True, name=f"case {seed}")
    thread.start()
    thread.join(patience)
    if thread.is_alive():
        raise HangsError(f"seed {seed} hangs\n{_stacks()}")
    if errors:
        raise AssertionError(f"seed {seed}: {errors[0]}")
    until = time.monotonic() + patience
    while left := {*threading.enumerate()} - before - _of_progress_bars():
        if time.monotonic() > until:
            raise HangsError(f"seed {seed} leaves {left}\n{_stacks()}")
        time.sleep(0.001)
    return found[0]


def campaign(case: Callable[[int], str], options: Any, share: float, patience: float = 60.0) -> None:
    """Run *case* for its *share* of the campaign's minutes; fail with the findings, at most ten."""
    seed, outcomes, findings = options.getoption("--fuzz-seed"), Counter[str](), []
    until = time.monotonic() + 60 * share * options.getoption("--fuzz-minutes")
    while time.monotonic() < until and len(findings) < 10:
        try:
            outcomes[watched(case, seed, patience)] += 1
        except AssertionError as error:
            findings.append(str(error))
        except HangsError as error:
            findings.append(str(error))
            break
        seed += 1
    print(dict(outcomes), "up to seed", seed)
    assert not findings, "\n\n".join(findings)


def _of_progress_bars() -> set[threading.Thread]:
    """The thread that tqdm keeps once transformers has shown a progress bar."""
    return {thread for thread in threading.enumerate() if type(thread).__name__ == "TMonitor"}


def _stacks() -> str:
    """The stack of every thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
