"""A batcher: every request gives what it gives alone, whatever runs beside it."""

import asyncio
import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from decodekit.decoding import (
    Batcher,
    BatcherFullError,
    Draft,
    Event,
    Generator,
    Greedy,
    History,
    Logprobs,
    MaxLength,
    MaxNewTokens,
    NotBefore,
    RequestHandle,
    Sample,
    SpeculationStep,
)
from decodekit.decoding.cache.slots import Slots
from decodekit.decoding.engine.decode_loop import DecodeLoop
from decodekit.decoding.results.streamers import ClosedError
from decodekit.neuron_backend.static_decoder import StaticDecoder
from decodekit.processors import PrefixFunction, RepetitionPenalty, Temperature
from decodekit.speculation import DraftModel, DraftTree, PromptLookup, Tree
from decodekit.streaming import EventIterator, FanOut, LatencyMeter
from decodekit.testing import ScriptedDecoder

from ..engine.requests import Wanted, wanted

TABLE = 2 * torch.randn(97, 9, generator=torch.Generator().manual_seed(3))
NEAR = TABLE + 0.5 * torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(4))


def scripted(rows: int, table: Tensor = TABLE, **options: Any) -> ScriptedDecoder:
    """A decoder over *table*."""
    return ScriptedDecoder(table, **{"batch_size": rows, "max_length": 48, **options})


def parts_of(**parts: Any) -> Any:
    """The parts of a generator."""
    return Generator(scripted(1), **parts).parts


def alone(prompt: list[int], random_stream: int = 0, rows: int = 1, **parts: Any) -> tuple[list[int], Any]:
    """What a request gives by itself."""
    result = Generator(scripted(rows), **parts)([prompt], random_streams=[random_stream])
    return result.ids[0], result.finishes[0]


def given(handle: RequestHandle) -> tuple[list[int], Any]:
    """What a request of one sample gave."""
    result = handle.result()
    return result.ids[0], result.finishes[0]


class PartError(Exception):
    """Raised by a part of a test."""


class Fails:
    """A processor that raises in the step in which a row has so many tokens."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """As it is."""
        if (history.length == self.length).any():
            raise PartError("this part fails")
        return logits


def check_requests(dice: random.Random, make: Any, drafters: list[Any], rows: int, count: int) -> int:
    """
    Compare *count* random requests in a batcher with the same alone.

    They are random in chain, sampler, stop, drafter, length, arrival, priority, chunks, cancellations and
    parts that raise.

    Returns:
        The number that ran to their end.
    """
    decoder = make(rows)
    options = {"prefill_width": dice.choice([None, 1, 5, 16]), "max_gap": dice.choice([None, 1e-9])}
    batcher = Batcher(decoder, **options)
    waiting = [wanted(dice, decoder.shape.vocab_size, 1, drafters) for _ in range(count)]
    running: list[tuple[Wanted, RequestHandle, int | None]] = []
    step = 0
    while waiting or not all(handle.done for _, handle, _ in running):
        for one in [one for one in waiting if one.arrives <= step]:
            waiting.remove(one)
            fails = None
            if dice.random() < 0.1:
                fails = len(one.prompts[0]) + dice.randint(0, 5)
                one.parts["processors"] = one.parts["processors"] | Fails(fails)
            parts = Generator(decoder, **one.parts).parts
            [stream], priority = one.random_streams, dice.randint(0, 3)
            handle = batcher.submit(parts, one.prompts[0], random_stream=stream, priority=priority)
            running.append((one, handle, fails))
        for one, handle, _ in running:
            if one.leaves is not None and step > one.arrives + one.leaves:
                handle.cancel()
        batcher.step()
        step += 1
        assert step < 3000, "the batcher makes no progress"
    whole = 0
    for one, handle, fails in running:
        try:
            result = given(handle)
        except PartError:
            assert fails is not None
            continue
        if result[1] is not None and result[1].reason == "cancelled":
            if fails is None:
                assert one.alone(make(1))[0][0][: len(result[0])] == result[0]
            continue
        if fails is not None:
            # Alone, other drafts may reach the length at which the part raises.
            one.parts.pop("drafter", None)
        assert one.alone(make(1)) == [result]
        whole += 1
    return whole


@pytest.mark.mostly_slow(every=20)
@pytest.mark.parametrize("seed", range(200))
def test_scripted_requests(seed: int) -> None:
    """Twenty-five requests; draft models are shared, and rows are fed by themselves or copied, or not."""
    dice = random.Random(seed)
    rows = {"row_widths": dice.choice([(), (5, 16), (16,), (1, 5)]), "copies_rows": dice.random() < 0.5}
    drafters = [PromptLookup(), DraftModel(scripted(5, NEAR, **rows))]

    assert check_requests(dice, partial(scripted, **rows), drafters, dice.randint(1, 5), 25)


@pytest.mark.mostly_slow(every=15)
@pytest.mark.parametrize("seed", range(45))
def test_float64_requests(seed: int, tiny_model: Any) -> None:
    """Twelve requests over a model."""
    model, draft = tiny_model("llama", torch.float64), tiny_model("qwen2", torch.float64)

    dice = random.Random(seed)
    widths = dice.choice([(), (16,), (5, 16)])

    def make(rows: int) -> StaticDecoder:
        decoder = StaticDecoder(model, batch_size=rows, max_length=48, widths=(1, 5, 16), scored_width=5)
        decoder.offer_rows(widths)
        return decoder

    drafter = DraftModel(StaticDecoder(draft, batch_size=4, max_length=48, widths=(1, 5, 16), scored_width=5))

    assert check_requests(dice, make, [PromptLookup(), drafter], dice.randint(1, 4), 12)


class TestReading:
    PROMPTS = ([1, 2], [3], [4, 5, 6], [7], [1, 2, 8])
    STOP = MaxNewTokens(6)

    def expected(self) -> list[tuple[list[int], Any]]:
        """Each request alone."""
        return [alone(prompt, stop=self.STOP) for prompt in self.PROMPTS]

    def test_reading_one_advances_all(self) -> None:
        """Without a thread; in any order."""
        batcher, parts = Batcher(scripted(2)), parts_of(stop=self.STOP)
        handles = [batcher.submit(parts, prompt) for prompt in self.PROMPTS]

        assert self.expected()[::-1] == [given(handle) for handle in handles[::-1]]

    def test_events_come_as_they_occur(self) -> None:
        """They add up to the result."""
        batcher, parts = Batcher(scripted(2)), parts_of(stop=self.STOP)
        handle = batcher.submit(parts, [1, 2], logprobs=Logprobs(2))
        first = next(iter(handle))
        assert not handle.done
        events = [first, *handle]
        expected = Generator(scripted(1), stop=self.STOP)([[1, 2]], logprobs=Logprobs(2))

        assert expected.ids[0] == [token for event in events for token in event.ids]
        assert expected.logprobs == handle.result().logprobs

    def test_a_thread_advances_them(self) -> None:
        """And other threads read."""
        results: dict[int, Any] = {}
        with Batcher(scripted(2)) as batcher:
            parts = parts_of(stop=self.STOP)

            def ask(number: int) -> None:
                results[number] = given(batcher.submit(parts, self.PROMPTS[number]))

            threads = [threading.Thread(target=ask, args=[number]) for number in range(len(self.PROMPTS))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        assert dict(enumerate(self.expected())) == results

    def test_threads_without_a_thread_of_its_own(self) -> None:
        """One that reads advances the requests of the others."""
        batcher, parts = Batcher(scripted(2)), parts_of(stop=self.STOP)
        results: dict[int, Any] = {}

        def ask(number: int) -> None:
            results[number] = given(batcher.submit(parts, self.PROMPTS[number]))

        threads = [threading.Thread(target=ask, args=[number]) for number in range(len(self.PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert dict(enumerate(self.expected())) == results

    @pytest.mark.parametrize("threaded", [True, False])
    def test_tasks_await_them(self, threaded: bool) -> None:
        """Also by ``async for``."""

        async def read(handle: RequestHandle) -> list[int]:
            return [token async for event in handle for token in event.ids]

        async def main() -> tuple[list[list[int]], list[Any]]:
            batcher, parts = Batcher(scripted(2)), parts_of(stop=self.STOP)
            if threaded:
                async with batcher:
                    handles = [batcher.submit(parts, prompt) for prompt in self.PROMPTS]
                    return await asyncio.gather(*map(read, handles)), await asyncio.gather(*handles)
            handles = [batcher.submit(parts, prompt) for prompt in self.PROMPTS]
            found = await asyncio.gather(*map(read, handles)), await asyncio.gather(*handles)
            batcher.close()
            return found

        ids, results = asyncio.run(main())

        assert [one for one, _ in self.expected()] == ids == [result.ids[0] for result in results]

    def test_a_cancelled_task_cancels_its_request(self) -> None:
        """The others go on."""

        async def main() -> tuple[Any, Any]:
            async with Batcher(scripted(1)) as batcher:
                slow = batcher.submit(parts_of(processors=Slow(), stop=MaxNewTokens(40)), [1])
                other = batcher.submit(parts_of(stop=self.STOP), [3])
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(slow, 0.05)
                return await slow, await other

        slow, other = asyncio.run(main())

        assert ["cancelled"] == slow.finish_reasons
        assert alone([3], stop=self.STOP)[0] == other.ids[0]

    def test_samples_are_separate_calls(self) -> None:
        """Each with a random stream of its own."""
        options = {"sampler": Sample(seed=5), "stop": self.STOP}
        result = (
            Batcher(scripted(2)).submit(parts_of(**options), [1], num_samples=5, random_stream=3).result()
        )

        assert [alone([1], 3 + i, **options)[0] for i in range(5)] == result.ids
        assert [[1]] * 5 == result.prompts
        assert 5 == result.seed

    def test_a_result_within_a_time(self) -> None:
        """The request goes on."""
        goes_on = threading.Event()

        def waits(logits: Tensor, history: History) -> Tensor:
            assert goes_on.wait(60)
            return logits

        with Batcher(scripted(1)) as batcher:
            handle = batcher.submit(parts_of(processors=waits, stop=self.STOP), [1])
            with pytest.raises(TimeoutError, match=r"the request did not end within 0.01 seconds"):
                handle.result(timeout=0.01)
            goes_on.set()

            assert alone([1], stop=self.STOP) == given(handle)


class Slow:
    """A processor that takes its time."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """As it is."""
        time.sleep(0.01)
        return logits


class Collects:
    """A streamer."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.told: list[Any] = []
        self.fails = fails

    def put_event(self, event: Event) -> None:
        """Keep it."""
        if self.fails is not None:
            raise self.fails
        self.told.append(event)

    def end(self) -> None:
        """Keep that."""
        self.told.append("end")

    def fail(self, error: BaseException) -> None:
        """Keep it."""
        self.told.append(error)


class BrokenReader(Collects):
    """A streamer whose every call raises, once some are not."""

    def __init__(self, *breaks: str) -> None:
        super().__init__()
        self.breaks, self.closed = breaks, False

    def begin(self, prompts: list[list[int]]) -> None:
        """Take them."""
        self.hear("begin")

    def put_event(self, event: Event) -> None:
        """Take it."""
        self.hear("put_event")

    def end(self) -> None:
        """Take it."""
        self.hear("end")

    def fail(self, error: BaseException) -> None:
        """Take it."""
        self.hear("fail")

    def hear(self, call: str) -> None:
        """Note the *call*, or break."""
        self.told.append(call)
        if call in self.breaks:
            quiet = self.closed or call == "begin"
            raise ClosedError if quiet else BrokenPipeError(f"{call} has no reader")


class FailingLength:
    """A draft length that cannot learn."""

    most = 2

    def __call__(self, rows: int) -> int:
        """Two."""
        return 2

    def learn(self, outcome: SpeculationStep) -> None:
        """Raise."""
        raise PartError("this part fails")


class OnlyIds:
    """A Hugging Face streamer."""

    def put(self, value: Tensor) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class TestIsolation:
    STOP = MaxNewTokens(6)

    @pytest.mark.parametrize("prompt", [[99], [1]])
    @pytest.mark.parametrize("make", [EventIterator, LatencyMeter, lambda: FanOut(LatencyMeter())])
    def test_a_refused_request_with_a_streamer_in_use(self, make: Any, prompt: list[int]) -> None:
        """The request that it serves goes on, and its reader gets every event."""
        batcher, parts, streamer = Batcher(scripted(1), max_waiting=1), parts_of(stop=self.STOP), make()
        handle = batcher.submit(parts, [3], streamer=streamer)
        batcher.submit(parts, [1])
        batcher.step()
        with pytest.raises((ValueError, BatcherFullError)):
            batcher.submit(parts, prompt, streamer=streamer)

        assert alone([3], stop=self.STOP) == given(handle)
        if isinstance(streamer, EventIterator):
            assert handle.result().ids[0] == [token for event in streamer for token in event.ids]

    def test_a_streamer_that_serves_one_generation(self) -> None:
        """A second one is refused, and changes nothing."""
        batcher, parts, streamer = Batcher(scripted(2)), parts_of(stop=self.STOP), EventIterator()
        handle = batcher.submit(parts, [3], streamer=streamer)
        with pytest.raises(RuntimeError, match="one generation"):
            batcher.submit(parts, [1], streamer=streamer)

        assert alone([3], stop=self.STOP) == given(handle)
        assert handle.result().ids[0] == [token for event in streamer for token in event.ids]
        assert 0 == len(batcher._requests)

    def test_a_streamer_that_waits_at_its_begin(self) -> None:
        """Others are served meanwhile, and it has its room."""

        class Waits:
            def begin(self, prompts: list[list[int]]) -> None:
                assert alone([1], stop=TestIsolation.STOP) == given(other)
                with pytest.raises(BatcherFullError):
                    batcher.submit_many(parts, [[1], [2]])

            def put_event(self, event: Event) -> None:
                pass

            def end(self) -> None:
                pass

        parts = parts_of(stop=self.STOP)
        with Batcher(scripted(1), max_waiting=1) as batcher:
            other = batcher.submit(parts, [1])
            found: list[Any] = []

            def submit() -> None:
                found.append(batcher.submit(parts, [3], streamer=Waits()).result(timeout=20).ids[0])

            thread = threading.Thread(target=submit, daemon=True)
            thread.start()
            thread.join(20)

        assert [alone([3], stop=self.STOP)[0]] == found

    @pytest.mark.parametrize("how", ["close", "cancel"])
    def test_a_batcher_that_is_closed_at_a_begin(self, how: str) -> None:
        """The request is finished, or cancelled, like those that run."""

        class Closes:
            def begin(self, prompts: list[list[int]]) -> None:
                batcher.close(finish=how == "close", wait=False)

            def put_event(self, event: Event) -> None:
                pass

            def end(self) -> None:
                pass

        batcher = Batcher(scripted(1))
        handle = batcher.submit(parts_of(stop=self.STOP), [3], streamer=Closes())
        batcher.close()

        expected = alone([3], stop=self.STOP)[0] if how == "close" else []
        assert expected == handle.result().ids[0]

    @pytest.mark.parametrize("threaded", [False, True])
    @pytest.mark.parametrize("what", ["result", "block"])
    def test_a_streamer_cannot_wait_for_a_request(self, what: str, threaded: bool) -> None:
        """Which could not begin before it returns."""

        class Waits:
            def put_event(self, event: Event) -> None:
                if what == "block":
                    batcher.submit(parts, [2], block=True)
                else:
                    batcher.submit(parts, [2]).result()

            def end(self) -> None:
                pass

        parts = parts_of(stop=self.STOP)
        batcher = Batcher(scripted(1), max_waiting=1 if what == "block" else 2)
        with batcher if threaded else contextlib.nullcontext():
            other = batcher.submit(parts, [1])
            handle = batcher.submit(parts, [3], streamer=Waits())
            with pytest.raises(
                RuntimeError, match="must not wait for a request of the batcher that calls it"
            ):
                handle.result(timeout=20)

            assert alone([1], stop=self.STOP) == given(other)

    def beside(self, **parts: Any) -> tuple[RequestHandle, tuple[list[int], Any]]:
        """A request with *parts* beside another, whose result is checked."""
        batcher = Batcher(scripted(2))
        drafter = parts.pop("shared", None)
        beside = {"stop": self.STOP} | (
            {} if drafter is None else {"drafter": drafter, "num_draft_tokens": 2}
        )
        if drafter is not None:
            parts |= {"drafter": drafter, "num_draft_tokens": 2}
        handle = batcher.submit(parts_of(**{"stop": self.STOP, **parts}), [3])
        other = batcher.submit(parts_of(**beside), [1, 2])
        assert alone([1, 2], stop=self.STOP) == given(other)
        return handle, given(batcher.submit(parts_of(stop=self.STOP), [5]))

    @pytest.mark.parametrize(
        "parts",
        [
            {"processors": Fails(4)},
            {"sampler": lambda logits, history: 1 // 0},
            {"processors": Fails(4), "shared": DraftModel(scripted(2, NEAR))},
            {"drafter": PromptLookup(), "num_draft_tokens": FailingLength()},
        ],
        ids=["processor", "sampler", "in a shared draft", "learning"],
    )
    def test_a_part_that_raises_ends_its_own_request(self, parts: dict[str, Any]) -> None:
        """The others have their tokens, and so has what comes after."""
        handle, after = self.beside(**parts)
        with pytest.raises((PartError, ZeroDivisionError)):
            handle.result()

        assert alone([5], stop=self.STOP) == after

    def test_a_drafter_that_raises(self) -> None:
        """Its requests end; others go on."""

        class Raises:
            def propose(self, history: History, budget: Tensor, sample: Any) -> Draft:
                raise RuntimeError("no draft")

        handle, after = self.beside(drafter=Raises(), num_draft_tokens=2)
        with pytest.raises(RuntimeError, match="no draft"):
            handle.result()

        assert alone([5], stop=self.STOP) == after

    def test_the_decoder_that_raises_ends_all(self) -> None:
        """Each is told once; the next ones are served."""
        decoder = scripted(2)
        batcher, parts = Batcher(decoder), parts_of(stop=self.STOP)
        streamers = [Collects() for _ in range(3)]
        handles = [batcher.submit(parts, [1 + i], streamer=one) for i, one in enumerate(streamers)]
        batcher.step()
        whole = decoder.table
        decoder.table = None  # type: ignore[assignment]
        for handle in handles:
            with pytest.raises(TypeError):
                handle.result()
        decoder.table = whole

        assert [1, 1, 1] == [sum(isinstance(told, TypeError) for told in one.told) for one in streamers]
        assert alone([5], stop=self.STOP) == given(batcher.submit(parts, [5]))

    def test_streamers_hear_events_and_the_end(self) -> None:
        """The events of a call."""
        batcher, streamer, expected = Batcher(scripted(1)), Collects(), Collects()
        batcher.submit(parts_of(stop=self.STOP), [3], streamer=streamer).result()
        Generator(scripted(1), stop=self.STOP)([3], streamer=expected)

        assert expected.told == streamer.told

    def test_a_streamer_that_is_closed_cancels_its_request(self) -> None:
        """Without an error; it is told of the end once."""
        batcher, streamer = Batcher(scripted(1)), Collects(ClosedError())
        result = batcher.submit(parts_of(stop=self.STOP), [3], streamer=streamer).result()

        assert ["cancelled"] == result.finish_reasons
        assert ["end"] == streamer.told

    def test_a_streamer_that_raises_ends_its_request(self) -> None:
        """The result raises the same."""
        batcher, error = Batcher(scripted(2)), RuntimeError("the reader is gone")
        streamer = Collects(error)
        handle = batcher.submit(parts_of(stop=self.STOP), [3], streamer=streamer)
        other = batcher.submit(parts_of(stop=self.STOP), [1, 2])
        with pytest.raises(RuntimeError, match="the reader is gone"):
            handle.result()

        assert [error] == streamer.told
        assert alone([1, 2], stop=self.STOP) == given(other)

    @pytest.mark.parametrize(
        ("breaks", "told", "message"),
        [
            (("put_event", "fail"), ["begin", "put_event", "fail"], "put_event has no reader"),
            (("end",), ["begin", *["put_event"] * 6, "end"], "end has no reader"),
        ],
    )
    def test_a_streamer_that_raises_at_the_end_too(
        self, breaks: tuple[str, ...], told: list[str], message: str
    ) -> None:
        """The thread and the other requests go on; the first exception is the result's."""
        streamer = BrokenReader(*breaks)
        with Batcher(scripted(2)) as batcher:
            handle = batcher.submit(parts_of(stop=self.STOP), [3], streamer=streamer)
            other = batcher.submit(parts_of(stop=self.STOP), [1, 2])
            with pytest.raises(BrokenPipeError, match=message):
                handle.result(timeout=60)

            assert alone([1, 2], stop=self.STOP) == given(other)
        assert told == streamer.told

    def test_a_streamer_that_raises_while_it_hears_of_a_failure(self) -> None:
        """The request's own exception stays its result's."""
        with Batcher(scripted(2)) as batcher:
            parts = parts_of(stop=self.STOP, processors=Fails(3))
            handle = batcher.submit(parts, [3], streamer=BrokenReader("fail"))
            with pytest.raises(PartError):
                handle.result(timeout=60)

            assert alone([5], stop=self.STOP) == given(batcher.submit(parts_of(stop=self.STOP), [5]))

    def test_a_streamer_that_is_closed_when_it_begins(self) -> None:
        """It is told of the end, as by a generator."""
        told = BrokenReader("begin"), BrokenReader("begin")
        Generator(scripted(1), stop=self.STOP)([3], streamer=told[0])
        result = Batcher(scripted(1)).submit(parts_of(stop=self.STOP), [3], streamer=told[1]).result()

        assert ["cancelled"] == result.finish_reasons
        assert ["begin", "end"] == told[0].told == told[1].told

    @pytest.mark.parametrize("breaks", [("end",), ("begin", "end")])
    def test_a_streamer_that_is_closed_when_it_ends(
        self, breaks: tuple[str, ...], caplog: pytest.LogCaptureFixture
    ) -> None:
        """The result is kept, by a generator and by a batcher, and nothing is logged."""
        told = BrokenReader(*breaks), BrokenReader(*breaks)
        told[0].closed = told[1].closed = True
        own = Generator(scripted(1), stop=self.STOP)([3], streamer=told[0])
        result = Batcher(scripted(1)).submit(parts_of(stop=self.STOP), [3], streamer=told[1]).result()

        assert ([] if "begin" in breaks else alone([3], stop=self.STOP)[0]) == own.ids[0] == result.ids[0]
        assert told[0].told == told[1].told
        assert not caplog.records

    def test_two_readers_of_one_request(self) -> None:
        """One that finds nothing, since the other was faster, waits for the next event."""
        batcher = Batcher(scripted(1))
        handle = batcher.submit(parts_of(stop=self.STOP), [3])
        server, taken = handle._server, list[Event]()

        class OtherReaderFirst:
            """Another reader takes the first event."""

            def wait_until(self, ready: Any, timeout: float | None = None) -> None:
                """Wait."""
                server.wait_until(ready, timeout)
                if not taken:
                    taken.append(handle._unread.popleft())

            def notify(self) -> None:
                """Tell all."""
                server.notify()

        handle._server = OtherReaderFirst()  # type: ignore[assignment]  # without tasks
        own = [token for event in handle for token in event.ids]

        assert alone([3], stop=self.STOP)[0] == [*taken[0].ids, *own]

    def test_requests_that_wait_hold_their_prompts_alone(self) -> None:
        """Thousands may wait, of a decoder for long texts."""
        handle = Batcher(scripted(1)).submit(parts_of(stop=self.STOP), [3, 2])
        history = Generator(scripted(2), stop=self.STOP)._history([[1], [2, 3], [4]], None)

        assert 2 == handle._requests[0].history.ids.shape[-1] == history.ids.shape[-1]

    def test_a_drafter_and_then_the_decoder_raise(self) -> None:
        """In one step: every request is told once, and the next ones are served."""
        decoder = scripted(2)
        whole = decoder.table

        class Breaks:
            def propose(self, history: History, budget: Tensor, sample: Any) -> Draft:
                decoder.table = None  # type: ignore[assignment]
                raise RuntimeError("no draft")

        with Batcher(decoder) as batcher:
            drafting = parts_of(stop=self.STOP, drafter=Breaks(), num_draft_tokens=2)
            handles = [batcher.submit(parts, [3]) for parts in (drafting, parts_of(stop=self.STOP))]
            for handle in handles:
                with pytest.raises(TypeError):
                    handle.result(timeout=60)
            decoder.table = whole

            assert alone([5], stop=self.STOP) == given(batcher.submit(parts_of(stop=self.STOP), [5]))

    def test_a_part_that_ends_the_thread(self) -> None:
        """Every request is told, and no more are taken."""

        def leave(logits: Tensor, history: History) -> Tensor:
            raise SystemExit

        submitted = threading.Event()

        class Waits(Collects):
            def put_event(self, event: Event) -> None:
                # So that the first request is not done before the second comes.
                assert submitted.wait(60)
                super().put_event(event)

        streamer = Waits()
        with Batcher(scripted(2)) as batcher:
            handles = [
                batcher.submit(parts_of(stop=self.STOP), [3], streamer=streamer),
                batcher.submit(parts_of(stop=self.STOP, processors=leave), [3], num_samples=2),
            ]
            submitted.set()
            for handle in handles:
                with pytest.raises(RuntimeError, match="the batcher's thread was ended by SystemExit"):
                    handle.result(timeout=60)
            with pytest.raises(RuntimeError, match="the batcher is closed"):
                batcher.submit(parts_of(), [1])
        assert isinstance(streamer.told[-1], RuntimeError)

    def test_a_streamer_that_leaves_loses_nothing(self) -> None:
        """Without a thread, its exception reaches the caller; every event is read afterwards, once."""

        class Leaves(Collects):
            def put_event(self, event: Event) -> None:
                super().put_event(event)
                raise KeyboardInterrupt

        batcher, streamer = Batcher(scripted(2)), Leaves()
        one = batcher.submit(parts_of(stop=MaxNewTokens(2)), [3], streamer=streamer)
        other = batcher.submit(parts_of(stop=MaxNewTokens(1)), [5])
        interrupts = 0
        while not (one.done and other.done):
            try:
                batcher.step()
            except KeyboardInterrupt:
                interrupts += 1

        assert (2, 2) == (interrupts, len([told for told in streamer.told if isinstance(told, Event)]))
        assert alone([3], stop=MaxNewTokens(2)) == given(one)
        assert alone([5], stop=MaxNewTokens(1)) == given(other)
        batcher.close()

    def test_an_interrupt_of_a_step(self) -> None:
        """What had a row ends with an error, what had not begun goes on, and the batcher is of use."""
        left = []

        def leaves(logits: Tensor, history: History) -> Tensor:
            if not left:
                left.append(True)
                raise KeyboardInterrupt
            return logits

        batcher = Batcher(scripted(1))
        first = batcher.submit(parts_of(stop=self.STOP, processors=leaves), [3])
        with pytest.raises(KeyboardInterrupt):
            batcher.step()
        later = batcher.submit(parts_of(stop=self.STOP), [5])

        with pytest.raises(RuntimeError, match="the batcher was interrupted by KeyboardInterrupt"):
            first.result(timeout=60)
        assert alone([5], stop=self.STOP) == given(later)
        batcher.close()

    def test_an_interrupt_before_a_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may come when the step's lock has been taken, before anything else: another thread goes on."""

        class Interrupted:
            """A lock that is taken, and an interrupt."""

            def __init__(self, lock: Any) -> None:
                self.lock, self.release = lock, lock.release

            def acquire(self, blocking: bool = True) -> bool:
                assert self.lock.acquire(blocking=blocking)
                raise KeyboardInterrupt

        batcher = Batcher(scripted(1))
        request = batcher.submit(parts_of(stop=self.STOP), [3])
        lock: Any = batcher._stepping
        with monkeypatch.context() as patch:
            patch.setattr(batcher, "_stepping", Interrupted(lock))
            with pytest.raises(KeyboardInterrupt):
                request.result(timeout=60)
        with ThreadPoolExecutor(1) as other:
            free = other.submit(lock.acquire, blocking=False).result()
            if free:
                other.submit(lock.release).result()

        assert free
        assert alone([3], stop=self.STOP) == given(request)
        batcher.close()

    def test_a_step_within_a_step(self) -> None:
        """A streamer that steps would wait for itself."""

        class Steps(Collects):
            def put_event(self, event: Event) -> None:
                with pytest.raises(RuntimeError, match="must not be made within a step of the same batcher"):
                    batcher.step()
                super().put_event(event)

        batcher, streamer = Batcher(scripted(1)), Steps()
        request = batcher.submit(parts_of(stop=self.STOP), [3], streamer=streamer)

        assert alone([3], stop=self.STOP) == given(request)
        batcher.close()

    @pytest.mark.parametrize("threaded", [True, False])
    def test_a_streamer_closes_the_batcher(self, threaded: bool) -> None:
        """It does not wait for its own thread."""
        batcher = Batcher(scripted(2))

        class Closes(Collects):
            def put_event(self, event: Event) -> None:
                batcher.close(finish=False)

        with batcher if threaded else contextlib.nullcontext():
            handle = batcher.submit(parts_of(stop=self.STOP), [3], streamer=Closes())

            assert ["cancelled"] == handle.result(timeout=60).finish_reasons

    def test_a_slow_reader_pauses_its_request(self) -> None:
        """And no other; it goes on when events are read."""
        batcher, parts = Batcher(scripted(2)), parts_of(stop=self.STOP)
        slow = batcher.submit(parts, [3], max_unread=2)
        assert alone([1, 2], stop=self.STOP) == given(batcher.submit(parts, [1, 2]))
        for _ in range(5):
            batcher.step()
        assert "2 tokens, running" in repr(slow)

        assert alone([3], stop=self.STOP)[0] == [token for event in slow for token in event.ids]

    @pytest.mark.parametrize("awaited", [False, True])
    def test_who_waits_for_the_end_reads_no_events(self, awaited: bool) -> None:
        """So unread ones pause nothing any more."""
        handle = Batcher(scripted(1)).submit(parts_of(stop=self.STOP), [3], max_unread=1)

        async def wait() -> Any:
            return await handle

        result = asyncio.run(wait()) if awaited else handle.result()
        assert alone([3], stop=self.STOP)[0] == result.ids[0]

    def test_a_request_that_takes_no_row_ends_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is in no list then, and would wait for ever."""
        batcher, parts, expected = Batcher(scripted(2)), parts_of(stop=self.STOP), alone([2], stop=self.STOP)
        join, failed = DecodeLoop.join, []

        def fails_once(self: DecodeLoop, run: Any, history: History, first: int) -> Any:
            if not failed:
                failed.append(first)
                raise PartError("no row")
            return join(self, run, history, first)

        monkeypatch.setattr(DecodeLoop, "join", fails_once)
        handles = [batcher.submit(parts, [token]) for token in (1, 2)]

        assert expected == given(handles[1])
        with pytest.raises(PartError, match="no row"):
            handles[0].result()

    def test_may_be_made_in_inference_mode(self) -> None:
        """The steps are another thread's."""
        decoders = scripted(1), scripted(1)
        with torch.inference_mode():
            batcher = Batcher(decoders[0])
        with batcher:
            assert alone([1], stop=self.STOP) == given(batcher.submit(parts_of(stop=self.STOP), [1]))
        with torch.inference_mode():
            events = Generator(decoders[1], stop=self.STOP).stream([[1], [2]])

        assert {0, 1} == {event.row for event in events}


class TestSeveralPrompts:
    """A request of several prompts."""

    PROMPTS: ClassVar[list[list[int]]] = [[1], [2, 3], [4, 5, 6], [7], [8, 1]]

    @pytest.mark.parametrize("streams", [None, [7, 0, 3, 3, 2**40]])
    def test_rows_are_those_of_a_call(self, streams: list[int] | None) -> None:
        """Under the same random streams, more of them than rows; the prompts are the result's."""
        parts: dict[str, Any] = {"sampler": Sample(5), "stop": MaxNewTokens(6)}
        expected = Generator(scripted(2), **parts)(self.PROMPTS, random_streams=streams)
        batcher = Batcher(scripted(2))
        result = batcher.submit_many(parts_of(**parts), self.PROMPTS, random_streams=streams).result()

        assert (expected.ids, expected.finishes) == (result.ids, result.finishes)
        assert (self.PROMPTS, 5) == (result.prompts, result.seed)

    def test_all_or_none(self) -> None:
        """No prompt begins where another is refused, or has no room."""
        batcher = Batcher(scripted(2), max_waiting=1)
        parts = parts_of(stop=MaxNewTokens(3))
        for prompts, options, message in (
            ([[1], []], {}, "prompt 1 must have 1 to 48 tokens"),
            ([[1], [99]], {}, "99"),
            ([[1], [2]], {"random_streams": [1]}, "random_streams"),
            ([], {}, "'prompts' must be 1 or more: got 0"),
            ([[1]] * 4, {}, r"at most 2 \+ 1 prompts and samples"),
        ):
            with pytest.raises(ValueError, match=message):
                batcher.submit_many(parts, prompts, **options)
        batcher.step()

        assert [] == batcher.decoder.forwards  # type: ignore[attr-defined]
        running = batcher.submit_many(parts, [[1], [2]])
        with pytest.raises(
            BatcherFullError, match="at most max_waiting=1 requests may wait for a row: 0 do, and 2"
        ):
            batcher.submit_many(parts, [[1], [2]])
        assert [3, 3] == list(map(len, running.result().ids))
        assert [3, 3, 3] == list(map(len, batcher.submit_many(parts, [[1]] * 3).result().ids))

    def test_one_prompt_of_submit(self) -> None:
        """Several are refused, with what takes them."""
        with pytest.raises(ValueError, match=r"one prompt: got 2. Use submit_many\(\)"):
            Batcher(scripted(2)).submit(parts_of(), [[1], [2]])

    def test_a_cancelled_one(self) -> None:
        """All of its rows end, those that wait too."""
        batcher = Batcher(scripted(2))
        handle = batcher.submit_many(parts_of(), self.PROMPTS)
        batcher.step()
        asyncio.run(handle.aclose())

        assert ["cancelled"] * 5 == handle.result().finish_reasons
        assert [1, 1, 0, 0, 0] == list(map(len, handle.result().ids))


class TestOrder:
    def test_priorities(self) -> None:
        """A higher one is seated first, then the earlier."""
        batcher, parts, ended = Batcher(scripted(1), ageing=1e9), parts_of(stop=MaxNewTokens(2)), []
        handles = [batcher.submit(parts, [1], priority=priority) for priority in (0, 1, 1, 2)]
        while len(ended) < 4:
            batcher.step()
            ended += [number for number, one in enumerate(handles) if one.done and number not in ended]

        assert [3, 1, 2, 0] == ended

    def test_a_prompt_is_compared_with_the_rows_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """When it gets its row, and not for each of its chunks: nothing drafts."""
        compared, overlap = [], Slots.overlap

        def counted(slots: Slots, ids: Any) -> list[int]:
            compared.append(len(ids))
            return overlap(slots, ids)

        monkeypatch.setattr(Slots, "overlap", counted)
        prompt = [number % 7 for number in range(30)]
        expected = alone(prompt, stop=MaxNewTokens(2))
        batcher = Batcher(scripted(2, widths=(1, 5)))
        compared.clear()
        request = batcher.submit(parts_of(stop=MaxNewTokens(2)), prompt)

        assert expected == given(request)
        assert [30] == compared

    def test_waiting_raises_the_priority(self) -> None:
        """So that no request starves."""
        batcher, parts = Batcher(scripted(1), ageing=1e-3), parts_of(stop=MaxNewTokens(2))
        first = batcher.submit(parts, [1])
        time.sleep(0.02)
        batcher.submit(parts, [1], priority=5)
        batcher.step()
        batcher.step()

        assert first.done

    def test_time_is_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For those that run and those that wait."""
        batcher, parts = Batcher(scripted(1)), parts_of(stop=MaxNewTokens(40))
        handles = [batcher.submit(parts, [1], timeout=600) for _ in range(2)]
        batcher.step()
        now = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now() + 601)
        results = [handle.result() for handle in handles]

        assert [["timeout"], ["timeout"]] == [result.finish_reasons for result in results]
        assert [1, 0] == [len(result.ids[0]) for result in results]

    def test_time_is_over_while_there_is_no_room(self) -> None:
        """A caller who waits for it waits no longer; the others go on."""
        stop, streamer = MaxNewTokens(40), Collects()
        batcher = Batcher(scripted(1), max_waiting=1)
        handles = [batcher.submit(parts_of(stop=stop, processors=Slow()), [1]) for _ in range(2)]
        late = batcher.submit(
            parts_of(), [2], block=True, timeout=0.05, streamer=streamer, logprobs=Logprobs()
        )

        assert not handles[0].done
        assert (["timeout"], [[]], [[]]) == (
            late.result().finish_reasons,
            late.result().ids,
            late.result().logprobs,
        )
        assert ["timeout", "end"] == [getattr(one, "finish_reason", one) for one in streamer.told]
        assert [alone([1], stop=stop)] * 2 == list(map(given, handles))

    def test_an_end_before_the_first_token_has_its_log_probabilities(self) -> None:
        """None, of none."""
        handle = Batcher(scripted(1)).submit(parts_of(), [1], logprobs=Logprobs())
        handle.cancel()

        assert ([[]], [[]]) == (handle.result().ids, handle.result().logprobs)

    def test_only_so_many_wait(self) -> None:
        """The next is refused, its streamer is told, and nothing changes."""
        batcher, parts, streamer = (
            Batcher(scripted(1), max_waiting=2),
            parts_of(stop=MaxNewTokens(2)),
            Collects(),
        )
        handles = [batcher.submit(parts, [1]) for _ in range(3)]
        message = "at most max_waiting=2 requests may wait for a row: 2 do, and 1 came"
        with pytest.raises(BatcherFullError, match=message):
            batcher.submit(parts, [1], streamer=streamer)
        while not handles[0].done:
            batcher.step()
        handles.append(batcher.submit(parts, [1]))

        assert [BatcherFullError] == [type(told) for told in streamer.told]
        assert [alone([1], stop=MaxNewTokens(2))] * 4 == list(map(given, handles))

    @pytest.mark.parametrize("threaded", [False, True])
    def test_a_full_batcher_makes_a_caller_wait(self, threaded: bool) -> None:
        """If it asks for that, with a thread or without; more samples than fit at all are an error."""
        parts, stop = parts_of(stop=MaxNewTokens(3)), MaxNewTokens(3)
        batcher = Batcher(scripted(1), max_waiting=1)
        with batcher if threaded else contextlib.nullcontext():
            handles = [batcher.submit(parts, [token], block=True) for token in (1, 2, 3, 4, 5)]
            with pytest.raises(ValueError, match=r"at most 1 \+ 1 prompts and samples.*: got 3"):
                batcher.submit(parts, [1], num_samples=3, block=True)

        assert [alone([token], stop=stop) for token in (1, 2, 3, 4, 5)] == list(map(given, handles))

    def test_closing_finishes_or_cancels(self) -> None:
        """And takes no more."""
        parts = parts_of(stop=MaxNewTokens(20))
        with Batcher(scripted(1)) as batcher:
            handle = batcher.submit(parts, [1], max_unread=1)
        assert alone([1], stop=MaxNewTokens(20)) == given(handle)
        with pytest.raises(RuntimeError, match="the batcher is closed"):
            batcher.submit(parts, [1])
        batcher = Batcher(scripted(1)).__enter__()
        handle = batcher.submit(parts_of(processors=Slow(), stop=MaxNewTokens(40)), [1])
        batcher.__exit__(KeyError)

        assert ["cancelled"] == handle.result().finish_reasons

    def test_closing_without_waiting(self) -> None:
        """The thread ends the requests, then itself, and takes no more."""
        batcher = Batcher(scripted(1))
        batcher.__enter__()
        handle = batcher.submit(parts_of(stop=MaxNewTokens(40)), [1], max_unread=1)
        batcher.close(finish=False, wait=False)

        assert ["cancelled"] == handle.result(10).finish_reasons
        with pytest.raises(RuntimeError, match="closed"):
            batcher.submit(parts_of(), [1])
        batcher.close()


class TestCache:
    def test_a_prompt_is_fed_from_where_a_row_has_it(self) -> None:
        """The row with the longest beginning of it."""
        decoder = scripted(3)
        batcher, parts = Batcher(decoder), parts_of(stop=MaxNewTokens(2))
        for prompt in ([1] * 20, [2] * 20):
            batcher.submit(parts, prompt).result()
        result = batcher.submit(parts, [2] * 20 + [3]).result()

        assert 20 == result.statistics.reused
        assert (alone([2] * 20 + [3], stop=MaxNewTokens(2))[0]) == result.ids[0]

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, [1, 16, 16, 16, 1]),
            ({"prefill_width": 5}, [1, 5, 5, 5, 5]),
            ({"max_gap": 1e-9}, [1, 1, 1, 1, 1]),
        ],
    )
    def test_chunks_of_a_prompt(self, options: dict[str, Any], expected: list[int]) -> None:
        """Beside a row that decodes a token in every step."""
        decoder = scripted(2)
        batcher, parts = Batcher(decoder, **options), parts_of(stop=MaxNewTokens(30))
        quick = batcher.submit(parts, [1])
        batcher.step()
        batcher.submit(parts, [2] * 40)
        for _ in range(4):
            batcher.step()

        assert expected == decoder.forwards
        assert "5 tokens" in repr(quick)


class Zeros:
    """A drafter."""

    def propose(self, history: History, budget: Tensor, sample: Any) -> Draft:
        """Two zeros."""
        return Draft(torch.zeros(len(budget), 2, dtype=torch.int64))


def test_no_draft_beside_a_chunk_that_scores_one_column() -> None:
    """Or the chunk would have to be narrow."""
    decoder = scripted(2)
    batcher = Batcher(decoder)
    batcher.submit(parts_of(drafter=Zeros(), num_draft_tokens=2, stop=MaxNewTokens(30)), [1])
    batcher.step()
    batcher.step()
    batcher.submit(parts_of(stop=MaxNewTokens(30)), [2] * 40)
    for _ in range(4):
        batcher.step()

    assert [1, 5, 16, 16, 16, 5] == decoder.forwards


def test_statistics() -> None:
    """Those of the steps and of the requests that ended, a draft's among them."""
    batcher, streams = Batcher(scripted(2)), range(5)
    parts = parts_of(drafter=PromptLookup(), num_draft_tokens=3, stop=MaxNewTokens(9))
    handles = [batcher.submit(parts, [1, 2], random_stream=stream) for stream in streams]
    own = [handle.result().statistics for handle in handles]
    counted = batcher.statistics

    assert 5 * 9 == counted.tokens == sum(one.tokens for one in own)
    assert sum(sum(one.drafted) for one in own) == sum(counted.drafted) > 0
    assert [one.steps for one in own] == [one.row_steps[0] for one in own]
    assert counted.forwards < counted.tokens
    assert 0 < counted.wasted_columns < counted.columns
    assert 0 < counted.host_seconds < counted.total_seconds


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"parts": 3}, TypeError, "'parts' must be a generator's .parts: got 3"),
            ({"prompt": [[1], [2]]}, ValueError, "a request must have one prompt: got 2"),
            ({"num_samples": 0}, ValueError, "'num_samples' must be a whole number >= 1: got 0"),
            ({"max_unread": 0}, ValueError, "'max_unread' must be a whole number >= 1: got 0"),
            ({"timeout": 0}, ValueError, "'timeout' must be > 0 seconds, or None: got 0"),
            ({"priority": float("nan")}, ValueError, "'priority' must not be NaN: got nan"),
            ({"priority": "high"}, TypeError, "'priority' must be a number: got 'high'"),
            (
                {"streamer": OnlyIds(), "num_samples": 2},
                ValueError,
                "a Hugging Face streamer takes one prompt: 2",
            ),
            ({"streamer": 3}, TypeError, "'streamer' must have put_event"),
            ({"random_stream": 1.5}, TypeError, "'random_streams' must be whole numbers"),
        ],
    )
    def test_arguments(self, options: dict[str, Any], error: type[Exception], message: str) -> None:
        """Nothing is queued, and a streamer is told."""
        batcher, streamer = Batcher(scripted(1)), Collects()
        arguments = {"parts": parts_of(), "prompt": [1], "streamer": streamer, **options}
        with pytest.raises(error, match=message):
            batcher.submit(**arguments)

        assert 0 == batcher.num_waiting
        assert [error] * (arguments["streamer"] is streamer) == list(map(type, streamer.told))

    def test_prompts(self) -> None:
        """A streamer is told."""
        streamer = Collects()
        with pytest.raises(ValueError, match="prompt 1 must have 1 to 48"):
            Batcher(scripted(1)).submit_many(parts_of(), [[1], [1] * 60], streamer=streamer)

        assert [ValueError] == list(map(type, streamer.told))

    def test_trees(self) -> None:
        """By name."""
        decoder = scripted(2, tree_widths=(8,))
        parts = Generator(decoder, drafter=DraftTree(scripted(2, NEAR), Tree.comb(2, 2))).parts
        with pytest.raises(ValueError, match="requests that share a decoder take no draft trees"):
            Batcher(decoder).submit(parts, [1])

    def test_parts_that_do_not_fit_the_decoder(self) -> None:
        """As in a generator of that decoder."""
        parts = Generator(scripted(1), drafter=PromptLookup(), num_draft_tokens=4).parts
        with pytest.raises(ValueError, match="draft"):
            Batcher(scripted(1, scored_width=1)).submit(parts, [1])


class TestManyPrompts:
    """A call with more prompts than rows."""

    PROMPTS: ClassVar = [[1 + i % 5] * (1 + i % 7) for i in range(11)]

    @pytest.mark.parametrize(
        "parts",
        [
            {"sampler": Greedy()},
            {"sampler": Sample(seed=3), "processors": RepetitionPenalty(1.2) | Temperature(0.7)},
            {"drafter": PromptLookup(), "num_draft_tokens": 3},
        ],
    )
    def test_rows_are_those_of_calls_alone(self, parts: dict[str, Any]) -> None:
        """In the order of the prompts."""
        stop = MaxNewTokens(7)
        result = Generator(scripted(3), stop=stop, **parts)(self.PROMPTS, logprobs=Logprobs())
        expected = [
            Generator(scripted(1), stop=stop, **parts)([prompt], random_streams=[row], logprobs=Logprobs())
            for row, prompt in enumerate(self.PROMPTS)
        ]

        assert [one.ids[0] for one in expected] == result.ids
        assert [one.finishes[0] for one in expected] == result.finishes
        assert result.logprobs is not None
        assert [one.logprobs and one.logprobs[0] for one in expected] == result.logprobs

    def test_statistics(self) -> None:
        """One row for each prompt."""
        result = Generator(scripted(3), stop=MaxNewTokens(7))(self.PROMPTS)
        counted = result.statistics

        assert (77, 11, [6] * 11) == (counted.tokens, counted.first_tokens, counted.row_steps)
        assert len(scripted(3).forwards) < counted.forwards < 77

    def test_streams(self) -> None:
        """Closing one leaves the generator ready."""
        generator = Generator(scripted(3), stop=MaxNewTokens(7))
        events = generator.stream(self.PROMPTS)
        assert {0, 1, 2} == {next(events).row for _ in range(3)}
        events.close()

        assert generator(self.PROMPTS).ids == [
            alone(p, i, stop=MaxNewTokens(7))[0] for i, p in enumerate(self.PROMPTS)
        ]

    def test_a_function_of_the_rows_gets_the_prompts_numbers(self) -> None:
        """As in a call that fits; samples have theirs too."""
        asked = PrefixFunction(lambda row, ids: [row % 9, (row + 1) % 9])
        prompts, options = (
            [[1], [2], [3], [4], [5]],
            {"processors": asked | RepetitionPenalty(1.1), "stop": MaxNewTokens(6)},
        )
        expected = Generator(scripted(5), **options)(prompts).ids

        assert expected == Generator(scripted(2), **options)(prompts).ids
        assert expected == Batcher(scripted(2)).submit_many(parts_of(**options), prompts).result().ids
        samples = Batcher(scripted(2)).submit(parts_of(**options), [1], num_samples=3).result().ids
        assert Generator(scripted(3), **options)([[1]] * 3).ids == samples

    def test_a_part_that_raises_ends_the_call(self) -> None:
        """As in a call that fits."""
        generator = Generator(scripted(2), processors=Fails(5), stop=MaxNewTokens(7))
        with pytest.raises(PartError, match="this part fails"):
            generator(self.PROMPTS)

    @pytest.mark.parametrize(
        "parts",
        [
            {"stop": MaxNewTokens([2, 3, 4])},
            {"stop": NotBefore(2, MaxLength([9, 9, 9])) | MaxNewTokens(3)},
            {"processors": RepetitionPenalty(torch.tensor([1.1, 1.2, 1.3]))},
            {"processors": Temperature([0.5, 0.6, 0.7]) | RepetitionPenalty(1.1), "sampler": Sample(seed=1)},
        ],
        ids=["limits", "nested limits", "processor", "chain"],
    )
    def test_parameters_for_each_row_are_refused(self, parts: dict[str, Any]) -> None:
        """Rather than those of the first row taken for all; in a call of fewer rows too."""
        generator = Generator(scripted(2), **parts)
        for prompts in ([[1], [2], [3]], [[1], [2]]):
            with pytest.raises(ValueError, match=r"one.* (for each|per row|value per row).*: got 3"):
                generator(prompts)

    @pytest.mark.parametrize(
        "chain", [Temperature([0.5, 0.6]), RepetitionPenalty(1.1) | Temperature([0.5, 0.6])]
    )
    def test_values_for_each_row_are_refused_before_anything_is_fed(self, chain: Any) -> None:
        """What the rows hold stays."""
        decoder = scripted(2)
        generator = Generator(decoder, processors=chain, sampler=Sample(seed=1))
        with pytest.raises(
            ValueError, match=r"one value for all where 3 prompts take turns.*got Temperature"
        ):
            generator.stream([[1], [2], [3]])

        assert [] == decoder.forwards


@pytest.mark.parametrize("rows", [1, 2])
def test_batchers_that_share_a_decoder_take_turns(rows: int) -> None:
    """Each overwrites the other's chunks; a prompt that was overwritten is fed and scored in one step."""
    decoder, parts = scripted(rows), parts_of(stop=MaxNewTokens(3))
    prompts = [[[first + 4 * side] * 36 for first in range(1, 1 + rows)] for side in range(2)]
    batchers = [Batcher(decoder), Batcher(decoder)]
    handles = [
        [batcher.submit(parts, prompt) for prompt in own]
        for batcher, own in zip(batchers, prompts, strict=True)
    ]
    for _ in range(40):
        for batcher in batchers:
            batcher.step()

    for own, asked in zip(handles, prompts, strict=True):
        for handle, prompt in zip(own, asked, strict=True):
            assert handle.done
            assert alone(prompt, stop=MaxNewTokens(3)) == given(handle)


def test_a_draft_model_catches_up_at_the_narrowest_pace() -> None:
    """A token a step is what the target adds."""
    target = scripted(2)
    batcher = Batcher(target, prefill_width=1)
    parts = Generator(
        target, drafter=DraftModel(scripted(2)), num_draft_tokens=4, stop=MaxNewTokens(20)
    ).parts
    prompts = [[1, 2, 3], [4, 5, 6]]
    handles = [batcher.submit(parts, prompt) for prompt in prompts]

    for handle, prompt in zip(handles, prompts, strict=True):
        assert alone(prompt, stop=MaxNewTokens(20)) == given(handle)
        assert handle.statistics.drafted
