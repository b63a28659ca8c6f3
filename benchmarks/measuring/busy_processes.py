"""Other load on the machine."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

_BUSY = (sys.executable, "-c", "while True: pass")


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Context beside *count* processes that compute all the time."""
    with contextlib.ExitStack() as started:
        for _ in range(count):
            process = started.enter_context(subprocess.Popen(_BUSY))
            started.callback(process.kill)
        if count:
            # Until they run, and are spread over the cores.
            time.sleep(1)
        yield
