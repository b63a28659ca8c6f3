"""A reader that is interrupted anywhere leaves no lock behind."""

import sys
import threading
from types import FrameType
from typing import Any

from decodekit.decoding import Event
from decodekit.streaming import event_queue
from decodekit.streaming.event_queue import EventQueue


def take_interrupted(queue: EventQueue, number: int) -> bool:
    """Take an event, interrupted where Python looks for signals for the time *number*; whether it was."""
    left = number

    def at_event(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename in (
            event_queue.__file__,
            threading.__file__,
        ):
            left -= 1
            if not left:
                sys.setprofile(None)
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(at_event)
    try:
        queue.take(None)
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
    return False


def test_another_thread_can_go_on() -> None:
    """Wherever the interrupt comes, while an event waits to be taken."""
    number, interrupted = 1, True
    while interrupted:
        queue = EventQueue(4, "wait")
        queue.put(Event(0, (5,)))
        interrupted = take_interrupted(queue, number)
        ender = threading.Thread(target=queue.end, daemon=True)
        ender.start()
        ender.join(10)

        assert not ender.is_alive(), f"interrupt {number}"
        number += 1

    assert number > 3
