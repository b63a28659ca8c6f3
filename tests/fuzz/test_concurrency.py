"""
Generations that share decoders and are disturbed: every text is the one that is generated alone.

For as long as ``--fuzz-minutes`` says, shared among the kinds of case; ``--fuzz-seed`` is the first seed. A
finding names its seed. After a case the next calls on the same decoder must give the texts of undisturbed
decoders, no thread may be left, and nothing may hang.
"""

import gc
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decodekit.streaming import Callback, EventIterator, FanOut, TextIterator

from .event_loops import tasks
from .generators import (
    Outcome,
    draft_decoder,
    made,
    outcome,
    solo,
    target,
)
from .interrupts import interrupted_at
from .ready import require_ready
from .tripping_parts import Trip
from .watched import campaign

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[2]

ERRORS: list[Callable[[], BaseException]] = [KeyboardInterrupt, MemoryError, lambda: RuntimeError("tripped")]


def start_all(functions: list[Callable[[], None]]) -> list[BaseException]:
    """Run each in a thread until all have ended; what they raised."""
    raised: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def shared_decoders(seed: int) -> str:
    """Threads with generators over the same decoders, some with the same generator, some of which leave."""
    dice = random.Random(seed)
    decoder, drafting = target(seed), draft_decoder()
    makers = [made(seed, number, decoder, drafting) for number in range(dice.randrange(1, 4))]
    alone = [solo(seed, number) for number in range(len(makers))]

    def user(number: int, way: float, count: int) -> Callable[[], None]:
        generator, prompts = makers[number]

        def whole() -> None:
            assert alone[number] == outcome(generator(prompts)), f"generator {number}"

        def leaves() -> None:
            events = generator.stream(prompts)
            for _ in range(count):
                next(events, None)
            if way < 0.5:
                events.close()

        def scores() -> None:
            generator.prompt_logprobs(prompts)

        return whole if way > 0.5 else leaves if way > 0.1 else scores

    users = [
        user(dice.randrange(len(makers)), dice.random(), dice.randrange(6))
        for _ in range(dice.randrange(2, 5))
    ]
    raised = start_all(users)
    assert not raised, f"{raised}"
    require_ready(seed, decoder, drafting)
    return f"{len(users)} threads"


def a_part_raises(seed: int) -> str:
    """The decoder, a processor, the sampler, the stop, the drafter, the tokenizer or the streamer."""
    dice = random.Random(seed)
    trip = Trip()
    decoder, drafting = target(seed, trip), draft_decoder(trip)
    generator, prompts = made(seed, 0, decoder, drafting, trip)
    streamers: list[Any] = [
        None,
        Callback(lambda _: trip.hit(), trip.hit),
        FanOut(Callback(lambda _: None), Callback(lambda _: trip.hit())),
    ]
    found: list[Outcome] = []
    others = [made(seed, 1, decoder, drafting)] if dice.random() < 0.3 else []
    trip.arm(dice.randrange(1, dice.choice([4, 30, 300])), dice.choice(ERRORS))

    def disturbed() -> None:
        found.append(outcome(generator(prompts, streamer=dice.choice(streamers))))

    # The error may hit the neighbour, which shares the decoder.
    raised = start_all([disturbed, *(lambda own=own: own[0](own[1]) for own in others)])
    assert raised == ([] if trip.raised is None else [trip.raised]), f"{raised} for {trip}"
    calls, trip.at = trip.calls, 0
    alone = solo(seed, 0, tripping=True)
    assert all(alone == one for one in found)
    assert alone == outcome(generator(prompts)), f"the same generator after {trip} at call {calls}"
    require_ready(seed, decoder, drafting)
    return "not reached" if trip.raised is None else type(trip.raised).__name__


def an_interrupt(seed: int) -> str:
    """At any entry of a function of decodekit's, or after any call that it makes."""
    dice = random.Random(seed)
    decoder, drafting = target(seed), draft_decoder()
    generator, prompts = made(seed, 0, decoder, drafting)
    pieces = EventIterator(capacity=2)

    def plain() -> None:
        generator(prompts)

    def streamed() -> None:
        for _ in generator.stream(prompts):
            pass

    def read() -> None:
        with pieces:
            for _ in pieces:
                pass

    way = dice.choice([plain, streamed, read])
    generation = threading.Thread(target=generator, args=(prompts,), kwargs={"streamer": pieces})
    if way is read:
        generation.start()
    try:
        done = interrupted_at(dice.randrange(1, dice.choice([100, 1000, 10000])), way)
    finally:
        # A reader that was interrupted before its block did not close.
        pieces.close()
        if way is read:
            generation.join()
    gc.collect()
    # From another thread, which a lock that stayed locked would stop.
    raised = start_all([lambda: require_ready(seed, decoder, drafting)])
    assert not raised, f"{raised}"
    return f"{way.__name__}, {'over before' if done else 'interrupted'}"


def readers(seed: int) -> str:
    """Iterators that are read late, partly or never, closed early or elsewhere, or dropped."""
    dice = random.Random(seed)
    trip = Trip()
    decoder, drafting = target(seed, trip), draft_decoder(trip)
    generator, prompts = made(seed, 0, decoder, drafting)
    trip.arm(dice.choice([0, 0, dice.randrange(1, 60)]), ERRORS[2])
    has_text = len(prompts) == 1 and generator.tokenizer is not None
    kind = dice.choice([TextIterator, EventIterator]) if has_text else EventIterator
    when_full = dice.choice(["wait", "merge"])
    pieces: Any = kind(capacity=dice.randrange(1, 4), when_full=when_full, timeout=30)
    way = dice.choice(["all", "late", "early", "never", "elsewhere", "dropped"])
    raised: list[BaseException] = []

    def generate(pieces: Any) -> None:
        try:
            generator(prompts, streamer=pieces)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=generate, args=(pieces,), daemon=True)
    thread.start()
    if way == "late":
        time.sleep(0.002)
    count = 10**6 if way in ("all", "late", "elsewhere") else dice.randrange(1, 5)
    if way == "elsewhere":
        threading.Timer(0.001 * dice.random(), pieces.close).start()
    got: list[Any] = []
    try:
        if way != "never":
            got += [piece for _, piece in zip(range(count), pieces, strict=False)]
    except RuntimeError as error:
        if error is not trip.raised:
            raise
    else:
        assert way not in ("all", "late") or trip.raised is None, "the reader was not told"
    if way != "dropped":
        pieces.close()
    else:
        # Iterating over it made a generator, which closes it.
        del pieces
        gc.collect()
    thread.join()
    assert raised == ([] if trip.raised is None else [trip.raised]), f"{raised}"
    if way in ("all", "late") and trip.raised is None:
        require_whole(solo(seed, 0), got)
    require_ready(seed, decoder, drafting)
    return way


def require_whole(alone: Outcome, got: list[Any]) -> None:
    """Check that what was read is all of the text."""
    ids, text, _ = alone
    if got and isinstance(got[0], str):
        assert text is not None
        assert text[0] == "".join(got)
    elif got:
        assert ids == [[token for e in got if e.row == row for token in e.ids] for row in range(len(ids))]


def signals_and_forks(seed: int) -> str:
    """Twenty seconds of cases in a program of its own."""
    program = [sys.executable, "-m", "tests.fuzz.signals_and_forks"]
    ended = subprocess.run(
        [*program, str(1000 * seed), "20"], capture_output=True, text=True, timeout=200, check=False, cwd=ROOT
    )
    assert not ended.returncode, f"{ended.stdout[-300:]}{ended.stderr}"
    return ended.stdout.splitlines()[-1]


CASES = [shared_decoders, a_part_raises, an_interrupt, readers, tasks, signals_and_forks]


@pytest.mark.parametrize("case", CASES)
def test_texts_are_those_alone(case: Callable[[int], str], pytestconfig: Any) -> None:
    """However a generation is disturbed, and with any other users of its decoder."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        campaign(case, pytestconfig, 1 / len(CASES))
