"""Batchers in a forked process."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

CODE = """
import os, signal, sys, threading
import torch
torch.set_num_threads(1)
from decodekit.decoding import Batcher, Generator, MaxNewTokens
from decodekit.testing import ScriptedDecoder

def parts(): return Generator(ScriptedDecoder(torch.eye(8).roll(1, dims=1)), stop=MaxNewTokens(4)).parts
batcher = Batcher(ScriptedDecoder(torch.eye(8).roll(1, dims=1), batch_size=2))
if THREADED: batcher.__enter__()
before = batcher.submit(parts(), [1])
expected = before.result()
waiting = batcher.submit(parts(), [2], max_unread=1)
held, released = threading.Event(), threading.Event()
def hold():
    with batcher._waiters.lock:
        held.set()
        released.wait()
holder = threading.Thread(target=hold, daemon=True)
if HELD:
    holder.start()
    held.wait()
child = os.fork()
released.set()
if not child:
    signal.alarm(30)
    status = 0
    for use in (lambda: waiting.result(), lambda: batcher.submit(parts(), [1]).result()):
        try:
            use()
        except RuntimeError:
            status += 1
    batcher.close()
    os._exit(status)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert len(waiting.result().ids[0]) == 4
batcher.close()
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("threaded", "held", "refused"), [(True, False, 2), (False, False, 0), (False, True, 0)]
)
def test_a_child(threaded: bool, held: bool, refused: int) -> None:
    """
    Is refused what a thread of its parent would do, and does not wait for it; else it goes on.

    Neither does it wait for a lock that another thread of its parent held.
    """
    code = CODE.replace("THREADED", str(threaded)).replace("HELD", str(held))
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )

    assert (refused, "") == (ended.returncode, ended.stderr)
