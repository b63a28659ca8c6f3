"""
A program of cases with real signals and forks: python -m tests.fuzz.signals_and_forks SEED SECONDS.

Prints each case's seed before the case, then how many there were. A case that hangs is ended by an alarm,
with the stacks of all threads.
"""

import asyncio
import faulthandler
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from decodekit.streaming import EventIterator

from .generators import draft_decoder, made, outcome, solo, target

PATIENCE = 20


def require_ready(seed: int, decoder: Any, drafting: Any) -> None:
    """Check the next call, in another thread, which a lock that stayed locked would stop."""
    found: list[Any] = []
    generator, prompts = made(seed, 9, decoder, drafting)
    thread = threading.Thread(target=lambda: found.append(outcome(generator(prompts))), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found == [solo(seed, 9)], f"{found} after the case"


def an_interrupt(seed: int) -> str:
    """SIGINT at a random moment, in a call, a loop over events, an event loop, or of a reader."""
    dice = random.Random(seed)
    decoder, drafting = target(seed), draft_decoder()
    generator, prompts = made(seed, 0, decoder, drafting)
    pieces = EventIterator(capacity=2)

    def streamed() -> None:
        for _ in generator.stream(prompts):
            pass

    async def loop() -> None:
        async for _ in generator.astream(prompts):
            pass

    def read() -> None:
        with pieces:
            threading.Thread(target=generator, args=(prompts,), kwargs={"streamer": pieces}).start()
            for _ in pieces:
                pass

    ways: list[Callable[[], Any]] = [
        lambda: generator(prompts),
        streamed,
        read,
        lambda: asyncio.run(loop()),
    ]
    way = dice.randrange(len(ways))
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    interrupted = False
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.0001, 0.02))
            ways[way]()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted = True
    except RuntimeError as error:
        # What threading's Condition makes of an interrupt as it begins to wait.
        if "cannot release un-acquired lock" != str(error):
            raise
    pieces.close()
    require_ready(seed, decoder, drafting)
    return "interrupted" if interrupted else "over before"


def a_fork(seed: int) -> str:
    """While other threads generate; the child uses their decoder, another one, and what they stream to."""
    dice = random.Random(seed)
    decoder, drafting, own = target(seed), draft_decoder(), target(seed)
    generator, prompts = made(seed, 0, decoder, drafting)
    pieces, results = EventIterator(capacity=2), list[Any]()
    # Before the fork: a module that another thread is importing cannot be imported in the child.
    alone = [solo(seed, 0), solo(seed, 1)]
    threads = [
        threading.Thread(target=generator, args=(prompts,), kwargs={"streamer": pieces}),
        threading.Thread(target=lambda: results.append(outcome(generator(prompts)))),
    ]
    for thread in threads:
        thread.start()
    ids: list[list[int]] = [[] for _ in prompts]
    if begun := dice.random() < 0.6:
        event = next(pieces)
        ids[event.row] += event.ids
    time.sleep(dice.uniform(0, 0.01))
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # The system ends it: a handler would not run while it waits for a lock.
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(PATIENCE)
        # A generation that has not begun may begin in the child.
        os._exit(in_child(seed, alone, decoder, own, drafting, generator, pieces if begun else ()))
    for event in pieces:
        ids[event.row] += event.ids
    for thread in threads:
        thread.join()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (10, 11), f"the child exits with {code}"
    assert results == alone[:1], "in the parent"
    assert ids == alone[0][0], "in the parent"
    return "refused in the child" if code == 10 else "used in the child"


def in_child(
    seed: int, alone: list[Any], decoder: Any, own: Any, drafting: Any, generator: Any, pieces: Any
) -> int:
    """10 if the parent's decoder was refused, 11 if it could be used, else another number."""
    another, prompts = made(seed, 1, own, draft_decoder())
    if outcome(another(prompts)) != alone[1]:
        return 20
    try:
        list(pieces)
    except RuntimeError as error:
        if "fork" not in str(error):
            return 21
    # Its tokenizer and drafter may have been in use as well.
    again, prompts = made(seed, 0, decoder, drafting)
    try:
        if alone[0] != outcome(again(prompts)) or alone[0] != outcome(generator(prompts)):
            return 22
    except RuntimeError as error:
        return 10 if "'spawn'" in str(error) else 23
    return 11


def main(seed: int, seconds: float) -> None:
    """Cases from *seed* on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("error")
    # From 3.12 on Python warns of what is done here on purpose.
    warnings.filterwarnings("ignore", "This process", DeprecationWarning)
    # Threads of torch do not survive a fork.
    torch.set_num_threads(1)
    outcomes, until = Counter[str](), time.monotonic() + seconds
    while time.monotonic() < until:
        print("seed", seed, flush=True)
        faulthandler.dump_traceback_later(3 * PATIENCE, exit=True)
        outcomes[random.Random(seed).choice([an_interrupt, a_fork])(seed)] += 1
        faulthandler.cancel_dump_traceback_later()
        assert threading.active_count() == 1 or not wait_for_threads(), threading.enumerate()
        seed += 1
    print(dict(outcomes), "up to seed", seed)


def wait_for_threads() -> list[threading.Thread]:
    """Threads that are left after some seconds."""
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    for thread in others:
        thread.join(PATIENCE / len(others))
    return [thread for thread in others if thread.is_alive()]


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
