"""Locks and queues in a process that was forked while another thread had them."""

import subprocess
import sys

LOCK = """
import os, threading
from decodekit.decoding.fork_safe_lock import fork_safe_lock

lock, held, forked = fork_safe_lock(), threading.Event(), threading.Event()

def hold():
    with lock:
        held.set()
        forked.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if not child:
    os._exit(7 if lock.acquire(timeout=5) else 8)
_, status = os.waitpid(child, 0)
forked.set()
thread.join()
assert os.waitstatus_to_exitcode(status) == 7
with lock:
    pass
"""

QUEUE = """
import os, threading
from decodekit.decoding.results.events import Event
from decodekit.streaming import EventIterator

events, begun, forked = EventIterator(timeout=10), threading.Event(), threading.Event()

def generate():
    events.begin([[1]])
    events.put_event(Event(0, (5,)))
    with events._queue._lock:
        begun.set()
        forked.wait()
    events.end()

thread = threading.Thread(target=generate)
thread.start()
begun.wait()
child = os.fork()
if not child:
    try:
        for event in events:
            assert event.ids == (5,)
    except RuntimeError as error:
        os._exit(7 if "forked" in str(error) else 8)
    os._exit(9)
_, status = os.waitpid(child, 0)
forked.set()
thread.join()
assert os.waitstatus_to_exitcode(status) == 7
assert [event.ids for event in events] == [(5,)]
"""


def test_a_lock_is_free_in_the_child() -> None:
    """Its holder does not exist there; in the parent it is as before."""
    subprocess.run([sys.executable, "-c", LOCK], timeout=120, check=True)


def test_a_reader_in_the_child_is_told() -> None:
    """What was waiting is read, then an error; the parent reads to the end."""
    subprocess.run([sys.executable, "-c", QUEUE], timeout=120, check=True)
