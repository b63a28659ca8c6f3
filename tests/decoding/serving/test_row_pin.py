"""Rows of a batcher that are held between requests."""

import gc
import random
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Batcher, Generator, MaxNewTokens, RowPin, Sample, Session
from decodekit.decoding.cache.slots import Slots
from decodekit.decoding.serving.row_pin import RowPins
from decodekit.decoding.serving.row_placement import best_row
from decodekit.processors import Temperature

from .chat_tokenizer import chat_tokenizer
from .test_session import generator, hear, require_calls, scripted


def test_a_pin_holds_one_row() -> None:
    """The last one; another request that takes it ends the claim, and so do a release and its own end."""
    pins, one, other = RowPins(), RowPin(), RowPin()
    pins.hold(2, one)
    assert (2, {2}, set()) == (pins.own(one), pins.others(other), pins.others(one))

    pins.hold(1, one)
    pins.hold(2, other)
    assert ({1}, {2}) == (pins.others(other), pins.others(one))

    pins.hold(1, None)
    assert (None, None, {2}) == (one.row, pins.own(one), pins.others(None))

    other.release()
    assert set() == pins.others(None)
    pins.hold(0, other)
    assert {0} == pins.others(None)
    del other
    gc.collect()
    assert set() == pins.others(None)


@given(seed=st.integers(0, 10**6))
def test_the_row_of_a_newcomer(seed: int) -> None:
    """Its own if that is free; else no pinned row while there is another; of pinned rows the least loss."""
    dice = random.Random(seed)
    rows = range(dice.randrange(1, 6))
    free = dice.sample(rows, dice.randrange(1, len(rows) + 1))
    held = [dice.randrange(5) for _ in rows]
    overlap = [dice.randrange(one + 1) for one in held]
    pinned = set(dice.sample(rows, dice.randrange(len(rows) + 1)))
    own = dice.choice([None, *(row for row in rows if row not in pinned)])

    row = best_row(free, overlap, held, pinned, own)

    assert row in free
    if own in free:
        assert own == row
    elif set(free) - pinned:
        assert row == best_row(sorted(set(free) - pinned), overlap, held)
    else:
        assert held[row] - overlap[row] == min(held[each] - overlap[each] for each in free)


def request(batcher: Batcher, parts: Any, prompt: list[int], pin: RowPin | None = None) -> list[int]:
    """The ids of a request."""
    return batcher.submit(parts, prompt, pin=pin).result().ids[0]


def test_a_pinned_row_is_taken_last() -> None:
    """Others' prompts evict each other, until no other row is free."""
    decoder = scripted(2)
    batcher, parts, pin = Batcher(decoder), generator(decoder, stop=MaxNewTokens(4)).parts, RowPin()
    request(batcher, parts, [5, 6, 7, 8], pin)
    row = pin.row
    assert row is not None
    held = Slots.of(decoder).held()[row]

    for first in range(8, 14):
        # They begin like the conversation, so that its row would help them most.
        request(batcher, parts, [5, 6, 7, first])
    assert (row, held) == (pin.row, Slots.of(decoder).held()[row])

    handles = [batcher.submit(parts, [5, 6, first]) for first in (8, 9)]
    assert [4, 4] == [len(handle.result().ids[0]) for handle in handles]
    assert pin.row is None


def test_a_released_row_is_like_others() -> None:
    """The next prompt that begins alike takes it."""
    decoder = scripted(2)
    batcher, parts, pin = Batcher(decoder), generator(decoder, stop=MaxNewTokens(4)).parts, RowPin()
    request(batcher, parts, [5, 6, 7, 8], pin)
    pin.release()
    handle = batcher.submit(parts, [5, 6, 7, 9])

    assert 3 == handle.result().statistics.reused


def test_refused_pins() -> None:
    """What is none, and one for several samples."""
    decoder = scripted(2)
    batcher, parts = Batcher(decoder), generator(decoder).parts
    with pytest.raises(TypeError, match="'pin' must be a RowPin, or None: got 1"):
        batcher.submit(parts, [5], pin=1)  # type: ignore[arg-type]  # the test
    with pytest.raises(ValueError, match="'num_samples' must be 1 with a pin, which holds one row: got 2"):
        batcher.submit(parts, [5], pin=RowPin(), num_samples=2)


@given(seed=st.integers(0, 10**6))
def test_sessions_beside_other_requests(seed: int) -> None:
    """Each turn is the call with its ids, and feeds what is new while there are rows enough."""
    dice = random.Random(seed)
    decoder = scripted(4)
    batcher, fresh = Batcher(decoder, prefill_width=dice.choice([None, 5])), generator(sampler=Sample(seed=2))
    parts = generator(decoder, sampler=Sample(seed=2)).parts
    sessions = [Session(batcher, parts=parts, random_stream=i) for i in range(3)]
    others = []
    for _ in range(12):
        session = dice.choice(sessions)
        # One at a time, for which there is one row beside the sessions'.
        if not others or others[-1].done:
            others.append(
                batcher.submit(parts, [dice.randrange(4, 10) for _ in range(dice.randrange(1, 30))])
            )
        before = session.ids
        hear(session.say("abe"))

        turn = session.turns[-1]
        kept = sum(len(segment.ids) for segment in turn.segments[:-1])
        assert min(kept, max(0, len(before) - 1)) == turn.statistics.reused or not before
    for session in sessions:
        require_calls(session, fresh)


def test_more_sessions_than_rows() -> None:
    """They take turns on the rows, and every turn is the call with its ids."""
    decoder = scripted(2)
    batcher, parts = Batcher(decoder), generator(decoder).parts
    sessions = [Session(batcher, parts=parts) for _ in range(4)]
    for text in ("ab", "cd", "ef"):
        for i, session in enumerate(sessions):
            hear(session.say(text * (i + 1)))

    for session in sessions:
        require_calls(session, generator())


def test_a_session_that_is_broken_off_frees_its_row() -> None:
    """For its next turn, which feeds what is new."""
    decoder = scripted(2)
    batcher, parts = Batcher(decoder), generator(decoder, stop=MaxNewTokens(30)).parts
    session = Session(batcher, parts=parts)
    for _ in zip(range(4), session.say("ab"), strict=False):
        pass
    broken = session.turns[0]
    assert (4, None) == (len(broken.ids), broken.finish_reason)
    hear(session.say("cd"))

    # Those that were read and fed; the last one may have been fed already, or not.
    assert session.turns[1].statistics.reused >= len(broken.prompt) + 3
    assert broken.statistics.tokens >= 4


def test_breaking_off_beside_a_thread() -> None:
    """What was read is kept, however far the thread is; the next turn is in the same row."""
    decoder = scripted(2)
    parts, pin_rows = generator(decoder, stop=MaxNewTokens(30), end_of_sequence=None).parts, set()
    with Batcher(decoder) as batcher:
        session = Session(batcher, parts=parts)
        for _ in range(5):
            for _ in zip(range(4), session.say("ab"), strict=False):
                pass
            pin_rows |= {row for row in range(2) if Slots.of(decoder).overlap(session.ids)[row] > 1}

    assert [4] * 5 == [len(turn.ids) for turn in session.turns]
    assert 1 == len(pin_rows)


def test_branches_and_releases_on_a_batcher() -> None:
    """A branch has a row of its own; a session that is released is as one that never had any."""
    decoder = scripted(3)
    batcher, parts = Batcher(decoder), generator(decoder).parts
    session = Session(batcher, parts=parts)
    hear(session.say("ab"))
    branch = session.branch()
    for text in ("cd", "ef"):
        assert hear(session.say(text)) == hear(branch.say(text))

    assert branch.turns[-1].statistics.reused >= len(branch.turns[-2].prompt)
    assert session.turns[-1].statistics.reused >= len(session.turns[-2].prompt)
    session.release()
    for _ in range(3):
        request(batcher, parts, [9, 8, 7, 6, 5])
    hear(session.say("h"))
    require_calls(session, generator())


def test_sessions_with_a_thread(tiny_model: Any) -> None:
    """On a model, sampled; the texts are those of calls."""
    from decodekit.neuron_backend.static_decoder import StaticDecoder

    model = tiny_model("llama", torch.float64)
    tokenizer = chat_tokenizer()

    def make(rows: int) -> Generator:
        decoder = StaticDecoder(model, batch_size=rows, max_length=96, widths=(1, 5, 16), scored_width=5)
        options = {"sampler": Sample(seed=3), "processors": Temperature(0.9), "stop": MaxNewTokens(8)}
        return Generator(decoder, tokenizer=tokenizer, **options)  # type: ignore[arg-type]  # of both types

    talk, fresh = make(2), make(1)
    with Batcher(talk.decoder) as batcher:
        sessions = [Session(batcher, parts=talk.parts, random_stream=i) for i in range(2)]
        for text in ("ab", "cd"):
            for session in sessions:
                hear(session.say(text))

    for session in sessions:
        require_calls(session, fresh)
        assert session.turns[1].statistics.reused >= len(session.turns[0].prompt)
