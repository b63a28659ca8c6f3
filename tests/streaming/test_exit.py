"""Programs that exit or are interrupted during generation: no hangs, and decoders stay usable."""

import subprocess
import sys

import pytest

PATIENCE = 60
"""Seconds after which a program counts as hanging; most of its time is spent importing torch."""

BEGINNING = """
import asyncio, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch
from decodekit.decoding import Generator, MaxNewTokens
from decodekit.streaming import AsyncEventIterator, EventIterator
from decodekit.testing import ScriptedDecoder, last_token

# Tests run in the background may ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Slow(ScriptedDecoder):
    def forward(self, ids, cache_pos):
        time.sleep(0.001)
        return super().forward(ids, cache_pos)

decoder = Slow(torch.eye(8).roll(1, dims=1), max_length=1_000_000, line=last_token)
generator = Generator(decoder, stop=MaxNewTokens(1_000_000))

def is_ready():
    return [[4, 5, 6, 7, 0]] == Generator(decoder, stop=MaxNewTokens(5))([3]).ids

def in_a_thread(events, **options):
    threading.Thread(target=generator, args=([1],), kwargs={"streamer": events}, **options).start()
"""

PROGRAMS = {
    "a reader that stops reading": """
events = EventIterator(capacity=3)
in_a_thread(events)
next(events)
""",
    "a reader that never begins": """
in_a_thread(EventIterator(capacity=3))
""",
    "a generation that never waits": """
in_a_thread(EventIterator(when_full="merge"))
""",
    "an event loop that is not closed": """
events, loop = AsyncEventIterator(capacity=3), asyncio.new_event_loop()
in_a_thread(events)
loop.run_until_complete(anext(events))
""",
    "an event loop's own threads": """
async def main():
    events = AsyncEventIterator(capacity=3)
    generation = asyncio.get_running_loop().run_in_executor(None, lambda: generator([1], streamer=events))
    async for _ in events:
        break
    return generation
asyncio.run(main())
""",
    "a pool's threads": """
with ThreadPoolExecutor() as pool, EventIterator(capacity=3) as events:
    pool.submit(generator, [1], streamer=events)
    next(events)
""",
    "a reader in a thread of its own, as the main thread ends": """
def read():
    for i, _ in enumerate(events):
        time.sleep(0.3 if i < 3 else 0)
        if i == 50:
            print("read on")
            break
events = EventIterator(capacity=3)
in_a_thread(events)
threading.Thread(target=read).start()
""",
    "an interrupt of a reader": """
events = EventIterator(capacity=3)
in_a_thread(events)
try:
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    for _ in events:
        pass
except KeyboardInterrupt:
    print("interrupted", is_ready())
""",
    "interrupts in the midst of rounds": """
in_time = 0
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
for i in range(150):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002 + i * 0.00004)
        for event in generator.stream([1]):
            pass
    except KeyboardInterrupt:
        in_time += 1
results = []
# Another thread: a lock that is left locked would let the one that has it through.
thread = threading.Thread(target=lambda: results.append(is_ready()), daemon=True)
thread.start()
thread.join(20)
print(in_time, results)
""",
}
SAYS = {
    "a reader in a thread of its own, as the main thread ends": "read on\n",
    "an interrupt of a reader": "interrupted True\n",
    "interrupts in the midst of rounds": "150 [True]\n",
}


@pytest.mark.mostly_slow(every=5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_ends(name: str) -> None:
    """By itself, without errors or warnings."""
    ended = subprocess.run(
        [sys.executable, "-c", BEGINNING + PROGRAMS[name]],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert "" == ended.stderr
    assert SAYS.get(name, "") == ended.stdout
    assert 0 == ended.returncode
