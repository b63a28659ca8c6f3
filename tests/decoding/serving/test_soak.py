"""A batcher under ten thousand requests of four threads: none is lost, none is told twice."""

import gc
import random
import threading
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.decoding import Batcher, BatcherFullError, Event, Generator, History, MaxNewTokens, Sample
from decodekit.decoding.results.streamers import ClosedError
from decodekit.testing import ScriptedDecoder

TABLE = 2 * torch.randn(97, 9, generator=torch.Generator().manual_seed(3))
STOP = MaxNewTokens(3)


class PartError(Exception):
    """Raised by a part."""


def raises(logits: Tensor, history: History) -> Tensor:
    """A processor that fails at some lengths."""
    if int(history.length.max()) % 3 == 0:
        raise PartError
    return logits


class Hears:
    """A streamer that counts how often it was told of an end, and may leave."""

    def __init__(self, leaves: bool) -> None:
        self.leaves = leaves
        self.ends = 0

    def put_event(self, event: Event) -> None:
        """Leave, if it does."""
        if self.leaves:
            raise ClosedError

    def end(self) -> None:
        """Count."""
        self.ends += 1

    def fail(self, error: BaseException) -> None:
        """Count."""
        self.ends += 1


@pytest.mark.slow
def test_ten_thousand_requests() -> None:
    """With cancellations, time-outs, readers that leave, and parts that raise; in four threads."""
    decoder = ScriptedDecoder(TABLE, batch_size=4, max_length=32)
    plain = Generator(decoder, sampler=Sample(seed=2), stop=STOP).parts
    failing = Generator(decoder, processors=raises, stop=STOP).parts
    solo = Generator(ScriptedDecoder(TABLE, max_length=32), sampler=Sample(seed=2), stop=STOP)
    lock = threading.Lock()
    outcomes: Counter[str] = Counter()
    wrong: list[Any] = []
    streamers: list[Hears] = []
    handles: list[weakref.ref[Any]] = []

    def count(outcome: str) -> None:
        # An increment of a counter is no single operation.
        with lock:
            outcomes[outcome] += 1

    def ask(seed: int) -> None:
        dice = random.Random(seed)
        for number in range(2500):
            prompt = [dice.randrange(9) for _ in range(dice.randint(1, 12))]
            streamer = Hears(dice.random() < 0.1)
            streamers.append(streamer)
            parts, timeout = dice.choice([plain, plain, failing]), dice.choice([None, None, 1e-3])
            try:
                handle = batcher.submit(
                    parts, prompt, random_stream=number, timeout=timeout, streamer=streamer
                )
            except BatcherFullError:
                count("full")
                continue
            handles.append(weakref.ref(handle))
            if dice.random() < 0.1:
                handle.cancel()
            try:
                result = handle.result(timeout=60)
            except PartError:
                count("raised")
                continue
            count(str(result.finish_reasons[0]))
            if number % 50 == 0 and parts is plain:
                with lock:
                    expected = solo([prompt], random_streams=[number]).ids[0]
                if expected[: len(result.ids[0])] != result.ids[0]:
                    wrong.append((prompt, number))

    with Batcher(decoder, max_waiting=1) as batcher:
        threads = [threading.Thread(target=ask, args=[seed]) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    gc.collect()

    assert not wrong
    assert 10_000 == outcomes.total()
    assert {"raised", "cancelled", "max_new_tokens"} <= set(outcomes)
    assert {1} == {streamer.ends for streamer in streamers}
    assert not any(handle() for handle in handles)
    assert "0 requests running, 0 waiting" in repr(batcher)
