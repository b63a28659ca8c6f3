"""Other load on the machine."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

# It ends with its parent, which may be killed before it ends them.
_LOOP = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Context beside *count* processes that compute all the time."""
    with contextlib.ExitStack() as started:
        for _ in range(count):
            command = [sys.executable, "-c", _LOOP, str(os.getpid())]
            process = started.enter_context(subprocess.Popen(command))
            started.callback(process.kill)
        if count:
            # Until they run, and are spread over the cores.
            time.sleep(1)
        yield
