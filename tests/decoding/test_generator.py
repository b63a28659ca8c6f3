"""The generator: calls, events, refusals, and what is left after them."""

import asyncio
import gc
import inspect
import time
from collections.abc import Coroutine, Generator as Items
from typing import Any

import numpy as np
import pytest
import torch

from decodekit.decoding import (
    DecoderShape,
    Draft,
    EndOfSequence,
    Finish,
    Generator,
    Greedy,
    MaxNewTokens,
    Sample,
    Slots,
    SpeculationStep,
    Statistics,
)
from decodekit.decoding.results.background import in_thread
from decodekit.processors import Temperature, TopK
from decodekit.speculation import AdaptiveLength, DraftModel, PromptLookup, SpeculativeGenerator
from decodekit.streaming import LatencyMeter, TextIterator
from decodekit.testing import ScriptedDecoder, last_token

COUNT_UP = torch.eye(8).roll(1, dims=1)
TABLE = torch.randn(53, 8, generator=torch.Generator().manual_seed(1))


class Ends:
    """A stop condition with the *finishes* given."""

    def __init__(self, finishes: Any) -> None:
        self.finishes = finishes

    def __call__(self, scores: Any, history: Any) -> torch.Tensor:
        return torch.zeros_like(history.length)


async def cancelled_thrice(consumer: Coroutine[Any, Any, None]) -> None:
    """Run *consumer*, and cancel it three times while a thread computes for it."""
    task = asyncio.create_task(consumer)
    await asyncio.sleep(0.02)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.005)
    with pytest.raises(asyncio.CancelledError):
        await task


def counting(**parts: Any) -> Generator:
    """A generator that counts up modulo 8, over three rows."""
    return Generator(ScriptedDecoder(COUNT_UP, batch_size=3, line=last_token), **parts)


class TestCall:
    def test_generates(self) -> None:
        """New tokens, sequences and finishes, row by row."""
        result = counting(stop=EndOfSequence(0) | MaxNewTokens(5))([[5], [1, 1], [7]])

        assert [[6, 7, 0], [2, 3, 4, 5, 6], [0]] == result.ids
        assert [[5, 6, 7, 0], [1, 1, 2, 3, 4, 5, 6], [7, 0]] == result.sequences
        assert [
            Finish("end_of_sequence", 0),
            Finish("max_new_tokens"),
            Finish("end_of_sequence", 0),
        ] == result.finishes
        assert result.text is None

    @pytest.mark.parametrize("prompts", [[5], np.array([5]), torch.tensor([[5]])])
    def test_takes_one_prompt(self, prompts: Any) -> None:
        """One prompt is a batch of one, in whatever shape it comes."""
        assert [[6, 7]] == counting(stop=MaxNewTokens(2))(prompts).ids

    def test_uses_every_position(self) -> None:
        """A row ends when its last token has no position left; a prompt that fills all gives one token."""
        decoder = ScriptedDecoder(COUNT_UP, max_length=16, line=last_token)
        generator = Generator(decoder, stop=MaxNewTokens(100))

        assert 17 == len(generator([0]).sequences[0])
        assert 7 in decoder.slots[0, 15:].tolist()
        assert [[7]] == generator([6] * 16).ids
        assert [Finish("max_length")] == generator([6] * 16).finishes

    def test_seeds_and_streams_decide(self) -> None:
        """Equal seeds and streams give equal text; another of either gives another."""
        parts = {"processors": Temperature(2.0), "stop": MaxNewTokens(30)}
        one = Generator(ScriptedDecoder(TABLE), sampler=Sample(seed=1), **parts)
        other = Generator(ScriptedDecoder(TABLE), sampler=Sample(seed=2), **parts)

        assert one([1]).ids == one([1]).ids == one([1], random_streams=[0]).ids
        assert one([1]).ids != one([1], random_streams=[1]).ids
        assert one([1]).ids != other([1]).ids

    def test_equal_prompts_differ_by_stream(self) -> None:
        """Rows of one prompt are different samples of it."""
        decoder = ScriptedDecoder(TABLE, batch_size=3)
        result = Generator(decoder, sampler=Sample(seed=0), stop=MaxNewTokens(20))([[1]] * 3)

        assert 3 == len({tuple(row) for row in result.ids})

    def test_generators_may_take_turns_on_one_decoder(self) -> None:
        """Two streams over one decoder, event by event in turns, give what each gives alone."""
        decoder = ScriptedDecoder(TABLE, batch_size=2)
        generator = Generator(decoder, sampler=Sample(seed=0), stop=MaxNewTokens(12))
        alone = [generator(prompts).ids for prompts in ([[1, 2], [3]], [[4], [5, 6, 7]])]
        turns: list[list[list[int]]] = [[[], []], [[], []]]
        for first, second in zip(
            generator.stream([[1, 2], [3]]), generator.stream([[4], [5, 6, 7]]), strict=True
        ):
            turns[0][first.row] += first.ids
            turns[1][second.row] += second.ids

        assert alone == turns

    def test_exact_width_reuses_nothing_from_other_programs(self) -> None:
        """What other widths have written does not count: the prompt goes through the one program again."""
        decoder = ScriptedDecoder(TABLE)
        Generator(decoder, stop=MaxNewTokens(3))([1] * 12)
        decoder.forwards.clear()
        Generator(decoder, stop=MaxNewTokens(3), exact_width=True)([1] * 12)

        assert [5] * 5 == decoder.forwards

    def test_exact_width_holds_beside_other_users(self) -> None:
        """Another generator's turn is not taken for the one program's work."""
        decoder = ScriptedDecoder(TABLE)
        exact = Generator(decoder, stop=MaxNewTokens(4), exact_width=True)
        events = exact.stream([1] * 12)
        next(events)
        Generator(decoder, stop=MaxNewTokens(1))([1] * 12)
        next(events)

        # Negative: the program where nothing before was written by another one.
        assert {-5} == set(Slots.of(decoder)._cached.program[0, :13].tolist())

    def test_does_not_keep_the_decoder(self) -> None:
        """When the generator goes, nothing of ours keeps the decoder alive."""
        decoder = ScriptedDecoder(TABLE)
        slots = Slots.of(decoder)
        generator = Generator(decoder, stop=MaxNewTokens(3))
        generator([1])
        del decoder, generator
        gc.collect()

        with pytest.raises(ReferenceError):
            _ = slots.decoder.shape


class TestStatistics:
    def test_counts(self) -> None:
        """Tokens, forwards and first-token time of a plain run."""
        statistics = counting(stop=MaxNewTokens([2, 4, 6]))([[1], [2], [3]]).statistics

        assert (12, 6) == (statistics.tokens, statistics.forwards)
        assert 1.0 == statistics.mean_accepted_length
        assert statistics.first_token_seconds is not None
        assert 0 < statistics.first_token_seconds <= statistics.total_seconds
        assert {"prefill", "target", "sample", "stop"} == set(statistics.seconds)
        assert statistics.tokens_per_second > 0

    def test_what_a_stop_cuts_is_counted_nowhere(self) -> None:
        """Draft tokens after the stop count neither as drafted nor as accepted."""
        fast = SpeculativeGenerator(
            ScriptedDecoder(COUNT_UP, line=last_token),
            DraftModel(ScriptedDecoder(COUNT_UP, line=last_token)),
            num_draft_tokens=4,
            stop=EndOfSequence(4),
        )
        statistics = fast([1]).statistics  # 2, then 3 4 | 5 6 and 7

        assert 3 == statistics.tokens
        assert [1, 1] == statistics.accepted
        assert statistics.drafted == statistics.accepted


class TestStream:
    def test_refuses_to_count_into_anything_else(self) -> None:
        """The class too."""
        for given in (5, Statistics):
            with pytest.raises(TypeError, match=r"'statistics' must be Statistics\(\): got"):
                counting().stream([1], statistics=given)

    def test_streams_count_into_statistics(self) -> None:
        """As the call does, event by event; those of several runs add up."""
        generator = counting(stop=MaxNewTokens(3))
        statistics = Statistics()
        events = generator.stream([[1], [4]], statistics=statistics)
        next(events)

        assert 2 == statistics.tokens
        assert 2 == len([event for event in events if event.finish])
        assert 6 == statistics.tokens
        assert 0 < statistics.total_seconds
        list(generator.stream([3], statistics=statistics))
        assert 9 == statistics.tokens

        async def read() -> None:
            async for _ in generator.astream([3], statistics=statistics):
                pass

        asyncio.run(read())
        assert 12 == statistics.tokens

    def test_adds_up_to_the_result(self) -> None:
        """The result is the sum of the events; each row's last one has its finish."""
        generator = counting(stop=MaxNewTokens([1, 3, 2]))
        events = list(generator.stream([[0], [3], [5]]))
        result = generator([[0], [3], [5]])

        assert result.ids == [[i for e in events if e.row == row for i in e.ids] for row in range(3)]
        assert [0, 2, 1] == [e.row for e in events if e.finish]

    def test_runs_only_when_asked(self) -> None:
        """No forward before the first event is requested, nor between events."""
        decoder = ScriptedDecoder(COUNT_UP, line=last_token)
        events = Generator(decoder).stream([1])

        assert [] == decoder.forwards

        next(events)
        next(events)

        assert 2 == len(decoder.forwards)

    def test_closing_leaves_the_generator_ready(self) -> None:
        """After leaving the loop early the next call is right."""
        generator = counting(stop=MaxNewTokens(6))
        for _ in generator.stream([[1], [2]]):
            break

        assert [[4, 5, 6, 7, 0, 1]] == generator([3]).ids

    def test_may_begin_in_inference_mode_and_go_on_without(self) -> None:
        """The caller's mode, and the thread that asks for an event, are of no concern."""
        generator = counting(stop=MaxNewTokens(3))
        with torch.inference_mode():
            events = generator.stream([1])

            async def run() -> list[int]:
                return [i async for event in generator.astream([1]) for i in event.ids]

            assert [2, 3, 4] == asyncio.run(run())

        assert [2, 3, 4] == [i for event in events for i in event.ids]

    def test_refuses_before_the_first_event(self) -> None:
        """A bad prompt raises where it was passed."""
        with pytest.raises(ValueError, match="prompt 0 must have"):
            counting().stream([[]])


class TestThreads:
    def test_generations_in_several_threads_do_not_mix(self) -> None:
        """Concurrent streams on one decoder each give what they give alone."""

        class Slow(ScriptedDecoder):
            busy = False

            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                assert not self.busy
                self.busy = True
                time.sleep(0.001)
                logits = super().forward(ids, cache_pos)
                self.busy = False
                return logits

        decoder = Slow(TABLE)
        draft = DraftModel(Slow(TABLE + 0.2))
        fast = SpeculativeGenerator(decoder, draft, sampler=Sample(seed=0), stop=MaxNewTokens(12))
        expected = [fast([i]).ids[0] for i in range(5)]

        async def text(i: int) -> list[int]:
            return [token async for event in fast.astream([i]) for token in event.ids]

        async def run() -> list[list[int]]:
            return await asyncio.gather(*(text(i) for i in range(5)))

        assert expected == asyncio.run(run())

    def test_what_looks_at_logits_cannot_use_their_decoder(self) -> None:
        """Its forward would end their life in the midst of the round; the decoder stays usable."""
        decoder = ScriptedDecoder(TABLE)
        plain = Generator(decoder, stop=MaxNewTokens(3))

        def nested(logits: torch.Tensor, history: Any) -> torch.Tensor:
            plain([5])
            return logits

        expected = plain([1]).ids
        for _ in range(2):
            with pytest.raises(RuntimeError, match="give it one of its own"):
                Generator(decoder, processors=nested)([1])

        assert expected == plain([1]).ids

    def test_a_decoder_may_draft_for_itself(self) -> None:
        """Target and draft may be one decoder: each finds what the other has fed."""
        decoder = ScriptedDecoder(TABLE)
        plain = Generator(ScriptedDecoder(TABLE), sampler=Sample(seed=0), stop=MaxNewTokens(20))([1, 2])
        fast = SpeculativeGenerator(
            decoder, DraftModel(decoder), sampler=Sample(seed=0), stop=MaxNewTokens(20)
        )

        assert plain.ids == fast([1, 2]).ids


class TestAstream:
    def test_gives_the_same_events(self) -> None:
        """The asynchronous stream is the synchronous one."""
        generator = counting(stop=MaxNewTokens(4))

        async def run() -> list[Any]:
            return [event async for event in generator.astream([[1], [2]])]

        assert list(generator.stream([[1], [2]])) == asyncio.run(run())

    def test_leaves_the_event_loop_free(self) -> None:
        """Another task runs between the events."""
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        async def run() -> None:
            task = asyncio.create_task(tick())
            async for _ in counting(stop=MaxNewTokens(20)).astream([1]):
                pass
            task.cancel()

        asyncio.run(run())

        assert ticks >= 20

    def test_a_cancelled_consumer_stops_the_decoding(self) -> None:
        """After a cancel no thread is left in the decoder, and the next call is right."""
        decoder = ScriptedDecoder(COUNT_UP, line=last_token)
        generator = Generator(decoder, stop=MaxNewTokens(60))

        async def run() -> None:
            async def consume() -> None:
                async for _ in generator.astream([1]):
                    pass

            task = asyncio.create_task(consume())
            while len(decoder.forwards) < 3:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(run())
        forwards = len(decoder.forwards)

        assert forwards < 60
        assert 60 == len(generator([2]).ids[0])

    def test_a_consumer_cancelled_twice_leaves_no_thread_behind(self) -> None:
        """However often it is cancelled, the consumer ends after the thread has come back."""
        inside = 0

        class Slow(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                nonlocal inside
                inside += 1
                time.sleep(0.05)
                inside -= 1
                return super().forward(ids, cache_pos)

        generator = Generator(Slow(COUNT_UP, line=last_token), stop=MaxNewTokens(50))

        async def run() -> None:
            async def consume() -> None:
                async for _ in generator.astream([1]):
                    pass

            await cancelled_thrice(consume())

            assert inside == 0

        asyncio.run(run())

        assert [[3, 4]] == Generator(generator.decoder, stop=MaxNewTokens(2))([2]).ids

    def test_a_consumer_cancelled_twice_closes_the_items(self) -> None:
        """Before it ends, not when they are collected."""
        closed = []

        def items() -> Items[int, None, None]:
            try:
                while True:
                    time.sleep(0.05)
                    yield 1
            finally:
                closed.append(True)

        source = items()

        async def run() -> None:
            async def consume() -> None:
                async for _ in in_thread(source):
                    pass

            await cancelled_thrice(consume())
            assert closed

        asyncio.run(run())

    def test_refuses_before_the_first_event(self) -> None:
        """A bad prompt raises where it was passed."""
        with pytest.raises(ValueError, match="prompt 0 must have"):
            counting().astream([[]])

    def test_errors_reach_the_consumer(self) -> None:
        """What a part raises comes out of the stream, with its own type."""

        def broken(logits: torch.Tensor, history: Any) -> torch.Tensor:
            raise ZeroDivisionError("broken on purpose")

        async def run() -> None:
            async for _ in counting(processors=broken).astream([1]):
                pass

        with pytest.raises(ZeroDivisionError, match="on purpose"):
            asyncio.run(run())


class TestStreamer:
    def test_is_told_everything(self) -> None:
        """A streamer gets each event and the end."""
        got: list[Any] = []

        class Listener:
            def put_event(self, event: Any) -> None:
                got.append(event)

            def end(self) -> None:
                got.append("end")

        generator = counting(stop=MaxNewTokens(3))
        generator([[1], [2]], streamer=Listener())

        assert [*generator.stream([[1], [2]]), "end"] == got


class Unbounded:
    """A length policy that does not say how far it goes."""

    most = None

    def __call__(self, rows: int) -> int:
        return 1

    def learn(self, outcome: SpeculationStep) -> None:
        pass


class TestRefusals:
    @pytest.mark.parametrize(
        ("parts", "error", "message"),
        [
            ({"temperature": 1.0}, TypeError, "temperature"),
            ({"sampler": Sample}, TypeError, "'sampler' must be an instance: got the class Sample"),
            (
                {"processors": MaxNewTokens(3)},
                TypeError,
                "'processors' must be processors, not a stop condition",
            ),
            ({"processors": 3}, TypeError, "'processors' must be callable, such as .*: got 3"),
            ({"sampler": "greedy"}, TypeError, "'sampler' must be callable, such as Greedy.*: got 'greedy'"),
            ({"stop": TopK(3)}, TypeError, "'stop' must be a stop condition"),
            (
                {"stop": Ends(["end"])},
                TypeError,
                r"'stop' must have finishes, a sequence of Finish: got \['end'",
            ),
            ({"stop": Ends(Finish("end"))}, TypeError, "'stop' must have finishes, a sequence of Finish"),
            ({"stop": lambda history: True}, TypeError, r"with finishes \(wrap a function in StopWhen"),
            ({"num_draft_tokens": True}, TypeError, "'num_draft_tokens' must be a whole number: got True"),
            ({"exact_width": 1}, TypeError, "exact_width"),
            ({"drafter": ScriptedDecoder(TABLE)}, TypeError, "'drafter' must have propose"),
            ({"drafter": PromptLookup(), "num_draft_tokens": 5}, ValueError, "must be at most 4.* got 5"),
            (
                {"drafter": PromptLookup(), "num_draft_tokens": -1},
                ValueError,
                "'num_draft_tokens' must be >= 0",
            ),
            (
                {"drafter": PromptLookup(), "verification": print},
                TypeError,
                "'verification' must have drafting",
            ),
            (
                {"num_draft_tokens": AdaptiveLength},
                TypeError,
                "'num_draft_tokens' must be an instance: got the class AdaptiveLength",
            ),
            (
                {"num_draft_tokens": Unbounded()},
                ValueError,
                "'num_draft_tokens' must say a whole number >= 0",
            ),
        ],
    )
    def test_parts_that_do_not_fit(self, parts: Any, error: type[Exception], message: str) -> None:
        """Refused when the generator is built."""
        with pytest.raises(error, match=message):
            counting(**parts)

    def test_a_draft_length_may_be_a_number_of_numpys(self) -> None:
        """It is the number that it is, in a generator that always drafts as well."""
        plain = counting(drafter=PromptLookup(), num_draft_tokens=np.int64(3))
        always = SpeculativeGenerator(plain.decoder, PromptLookup(), num_draft_tokens=np.int64(3))

        assert [int, int] == [type(one.num_draft_tokens) for one in (plain, always)]
        assert 3 == plain.num_draft_tokens == always.num_draft_tokens

    @pytest.mark.parametrize("stream", [Generator.stream, Generator.astream])
    def test_a_stream_names_what_takes_the_place_of_an_option(self, stream: Any) -> None:
        """As a call does."""
        with pytest.raises(TypeError, match=r"statistics: got 'max_tokens'; a Generator takes stop=MaxNew"):
            stream(counting(), [[1]], max_tokens=3)

    @pytest.mark.parametrize("kind", [Generator, SpeculativeGenerator])
    def test_a_constructor_does_too(self, kind: Any) -> None:
        """Before it looks at its parts; its signature is still that of its fields."""
        named = (
            rf"a {kind.__name__} must have no other options than decoder, .*: got 'top_k'; .*TopK\(\.\.\.\)"
        )
        with pytest.raises(TypeError, match=named):
            kind(counting().decoder, top_k=50)
        with pytest.raises(TypeError, match=r"got 'topk'$"):
            kind(counting().decoder, topk=50)

        assert "processors" in inspect.signature(kind).parameters

    def test_the_decoder_must_be_one(self) -> None:
        """A model is no decoder."""
        with pytest.raises(TypeError, match=r"'decoder' must have a shape and forward\(ids, cache_pos\)"):
            Generator(torch.nn.Linear(2, 2))  # type: ignore[arg-type]

    def test_speculation_needs_a_drafter(self) -> None:
        """There is no speculative generator without a drafter."""
        with pytest.raises(TypeError, match="drafter"):
            SpeculativeGenerator(ScriptedDecoder(TABLE))  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"'drafter' must have propose.*: got None"):
            SpeculativeGenerator(ScriptedDecoder(TABLE), None)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            ({"prompts": []}, ValueError, "'prompts' must be 1 or more: got 0"),
            ({"prompts": [[1], []]}, ValueError, "prompt 1 must have 1 to 64 tokens"),
            ({"prompts": [[1] * 65]}, ValueError, "prompt 0 must have 1 to 64 tokens"),
            ({"prompts": [9]}, ValueError, "ids of prompt 0 must be 0 to 7"),
            (
                {"prompts": [[1]], "random_streams": [1, 2]},
                ValueError,
                "'random_streams' must be one number for each",
            ),
            (
                {"prompts": [[1]], "random_streams": 3},
                TypeError,
                "'random_streams' must be whole numbers.*: got 3",
            ),
            (
                {"prompts": [[1]], "random_streams": [0.7]},
                TypeError,
                "'random_streams' must be whole numbers",
            ),
            (
                {"prompts": [[1]], "random_streams": [2**63]},
                ValueError,
                "'random_streams' must fit into 64 bits",
            ),
            ({"prompts": [[1]], "max_tokens": 3}, TypeError, r"'max_tokens'; a Generator takes stop=MaxNew"),
            (
                {"prompts": [[1]], "no_such": 3},
                TypeError,
                r"than random_streams.* num_samples: got 'no_such'$",
            ),
            ({"prompts": [[1]], "streamer": object()}, TypeError, "streamer"),
            ({"prompts": [[1]], "streamer": LatencyMeter}, TypeError, "'streamer' must have put_event"),
            ({"prompts": [[1]], "streamer": TextIterator}, TypeError, "'streamer' must have put_event"),
        ],
    )
    def test_calls_that_cannot_be(self, call: Any, error: type[Exception], message: str) -> None:
        """Refused before anything is decoded, and the next call works."""
        generator = counting(stop=MaxNewTokens(2))
        with pytest.raises(error, match=message):
            generator(**call)

        assert [[2, 3]] == generator([1]).ids

    def test_draft_tokens_that_are_no_ids(self) -> None:
        """A drafter that proposes invalid ids, or too many, costs only time."""

        class Nonsense:
            def propose(self, history: Any, budget: Any, sample: Any) -> Draft:
                return Draft(torch.tensor([[2, 3, 99, 4, 5, 6, 7, 8]]))

        fast = SpeculativeGenerator(
            ScriptedDecoder(COUNT_UP, line=last_token), Nonsense(), stop=MaxNewTokens(4)
        )

        assert [[2, 3, 4, 5]] == fast([1]).ids

    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            ({"processors": lambda logits, history: None}, r"'processors' must give .*\[1, 1, 8\]: got None"),
            ({"processors": lambda logits, history: logits[:, -1]}, r"\[1, 1, 8\]: got \[1, 8\] from"),
            (
                {"sampler": lambda logits, history: logits},
                r"'sampler' must give .*\[1, 1\]: got \[1, 1, 8\]",
            ),
        ],
    )
    def test_parts_that_give_another_shape(self, parts: Any, message: str) -> None:
        """A processor that forgets to return, or drops a dimension, is named with what it gave."""
        with pytest.raises(ValueError, match=message):
            counting(**parts)([1])

    @pytest.mark.parametrize("code", [5, -1])
    def test_codes_that_are_no_finishes(self, code: int) -> None:
        """A stop condition that gives a code beyond its finishes is refused with their number."""

        class Wrong:
            finishes = (Finish("wrong"),)

            def __call__(self, scores: torch.Tensor, history: Any) -> torch.Tensor:
                return torch.full_like(history.length, code)

        with pytest.raises(ValueError, match="'stop' must give codes 0 to 1"):
            counting(stop=Wrong())([1])

    def test_logits_of_another_shape(self) -> None:
        """A decoder that drops a dimension is refused with the expected shape."""

        class Flat(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                return super().forward(ids, cache_pos)[:, -1]

        with pytest.raises(ValueError, match=r"logits of the shape \[1, 1, 8\]: got \[1, 8\]"):
            Generator(Flat(COUNT_UP, line=last_token))([1])

    @pytest.mark.parametrize(
        ("ids", "error", "message"),
        [
            (torch.tensor([[1.0, 2.0]]), TypeError, r"int64 ids \[1, k\]: got torch.float32"),
            (torch.tensor([1, 2]), ValueError, r"int64 ids \[1, k\]: got the shape \[2\]"),
            (torch.tensor([[1], [2]]), ValueError, r"int64 ids \[1, k\]: got the shape \[2, 1\]"),
            ([[1, 2]], TypeError, r"int64 ids \[1, k\]: got Draft"),
        ],
    )
    def test_drafts_that_are_none(self, ids: Any, error: type[Exception], message: str) -> None:
        """A draft of another type or shape is refused; the next call works."""

        class Drafter:
            ids: Any

            def propose(self, history: Any, budget: Any, sample: Any) -> Draft:
                return Draft(self.ids)

        drafter = Drafter()
        drafter.ids = ids
        fast = SpeculativeGenerator(ScriptedDecoder(COUNT_UP, line=last_token), drafter, stop=MaxNewTokens(3))
        with pytest.raises(error, match=message):
            fast([1])
        drafter.ids = torch.tensor([[3, 4]])

        assert [[2, 3, 4]] == fast([1]).ids

    def test_a_drafter_that_writes_to_the_history(self) -> None:
        """What a drafter does to the lengths that it is shown changes no token."""

        class Meddler:
            def propose(self, history: Any, budget: Any, sample: Any) -> Draft:
                history.length.add_(1)
                return Draft(torch.tensor([[5]]))

        fast = SpeculativeGenerator(
            ScriptedDecoder(COUNT_UP, line=last_token), Meddler(), stop=MaxNewTokens(4)
        )

        assert [[2, 3, 4, 5]] == fast([1]).ids

    def test_a_failing_decoder_loses_nothing(self) -> None:
        """A forward that raises ends the call with its error; the next call is right."""

        class Flaky(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                if len(self.forwards) == 3:
                    self.forwards.append(0)
                    raise RuntimeError("device lost")
                return super().forward(ids, cache_pos)

        generator = Generator(Flaky(TABLE), stop=MaxNewTokens(10))
        expected = Generator(ScriptedDecoder(TABLE), stop=MaxNewTokens(10))([1]).ids
        with pytest.raises(RuntimeError, match="device lost"):
            generator([1])

        assert expected == generator([1]).ids


class TestCustomParts:
    def test_any_object_of_the_protocol(self) -> None:
        """A decoder, a processor, a sampler and a stop of one's own, none inheriting anything."""

        class Constant:
            shape = DecoderShape(1, 8, 3, (1, 4), 4)

            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                return torch.tensor([0.0, 1.0, 2.0]).expand(1, ids.shape[1], 3)

        class Second:
            finishes = (Finish("two_are_enough"),)

            def __call__(self, scores: torch.Tensor, history: Any) -> torch.Tensor:
                return (history.length - history.prompt[:, None] >= 2).long()

        generator = Generator(
            Constant(),
            processors=lambda logits, history: -logits,
            sampler=lambda logits, history: Greedy()(logits, history),
            stop=Second(),
        )
        result = generator([1])

        assert [[0, 0]] == result.ids
        assert [Finish("two_are_enough")] == result.finishes


class TestStreamerFailure:
    def test_a_refused_prompt_reaches_who_waits(self) -> None:
        """A streamer's consumer is notified of a call that was refused."""
        texts = TextIterator(timeout=5)
        with pytest.raises(ValueError, match="prompt 0"):
            counting()([[]], streamer=texts)

        with pytest.raises(ValueError, match="prompt 0"):
            list(texts)

    def test_a_refused_streamer_is_ended(self) -> None:
        """A Hugging Face streamer that cannot take two rows is ended."""
        ended = []

        class Streamer:
            def put(self, ids: Any) -> None:
                raise AssertionError("nothing is to be put")

            def end(self) -> None:
                ended.append(True)

        with pytest.raises(ValueError, match="one prompt"):
            counting()([[1], [2]], streamer=Streamer())

        assert [True] == ended


class TestLogits:
    def test_are_what_the_decoder_says_after_the_prompts(self) -> None:
        """Raw, one column a row, with the history that explain() wants; the next run is none the wiser."""
        table = torch.arange(12.0).reshape(4, 3)
        generator = Generator(
            ScriptedDecoder(table, batch_size=2, line=last_token),
            processors=Temperature(0.5),
            stop=MaxNewTokens(2),
        )
        before = generator([[1], [0, 2]]).ids

        logits, history = generator.logits([[1], [0, 2]])

        assert torch.equal(table[[1, 2]][:, None], logits)
        assert [[1], [2]] == history.length.tolist()
        assert before == generator([[1], [0, 2]]).ids


class TestSeeds:
    FLAT = ScriptedDecoder(torch.zeros(61, 61), line=last_token)

    def test_without_one_each_call_draws_its_own(self) -> None:
        """Reported, and with it the same text again."""
        generator = Generator(self.FLAT, sampler=Sample(), stop=MaxNewTokens(30))
        first, second = generator([1]), generator([1])

        assert first.seed != second.seed
        assert first.ids != second.ids
        for result in (first, second):
            again = Generator(self.FLAT, sampler=Sample(seed=result.seed), stop=MaxNewTokens(30))([1])
            assert result.ids == again.ids
            assert result.seed == again.seed

    def test_drafts_take_the_calls_seed(self) -> None:
        """A draft from the same model is accepted throughout, and changes no token."""
        draft = DraftModel(ScriptedDecoder(torch.zeros(61, 61), line=last_token))
        parts: dict[str, Any] = {"stop": MaxNewTokens(20)}
        result = SpeculativeGenerator(self.FLAT, draft, num_draft_tokens=4, sampler=Sample(), **parts)([1])

        assert Generator(self.FLAT, sampler=Sample(seed=result.seed), **parts)([1]).ids == result.ids
        assert result.statistics.drafted == result.statistics.accepted

    def test_streams_differ_too(self) -> None:
        """Events have no seed: who wants the same again gives one."""
        generator = Generator(self.FLAT, sampler=Sample(), stop=MaxNewTokens(30))

        assert [e.ids for e in generator.stream([1])] != [e.ids for e in generator.stream([1])]
