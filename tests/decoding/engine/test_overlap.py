"""A forward that is queued before the last sample is read changes no token, event or count."""

import gc
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import (
    EndOfSequence,
    Event,
    ExactMatch,
    Generation,
    Generator,
    Greedy,
    Logprobs,
    LowConfidence,
    MaxNewTokens,
    Sample,
    Slots,
    Statistics,
    StopWhen,
)
from decodekit.decoding.engine.active_request import ActiveRequest
from decodekit.decoding.engine.decode_loop import DecodeLoop
from decodekit.decoding.engine.parts import begin_run
from decodekit.decoding.prompts import first_history
from decodekit.decoding.protocols import Sampler
from decodekit.decoding.results.timers import Timers
from decodekit.processors import Temperature, TopK
from decodekit.speculation import PromptLookup
from decodekit.streaming import Callback
from decodekit.testing import ScriptedDecoder

from .queueing_decoder import QueueingDecoder

VOCAB = 9
TABLE = 2 * torch.randn(97, VOCAB, generator=torch.Generator().manual_seed(3))
CHAIN = Temperature(0.8) | TopK(6)
SAMPLERS: dict[str, Sampler] = {"greedy": Greedy(), "sample": Sample(seed=5)}
STOPS: dict[str, Any] = {
    "count": lambda: MaxNewTokens(7),
    "tokens": lambda: EndOfSequence([0, 1]) | MaxNewTokens(20),
    "history": lambda: StopWhen(lambda history: history.length[:, 0] % 7 == 0) | MaxNewTokens(9),
    "scores": lambda: LowConfidence(0.3) | MaxNewTokens(20),
    "position": lambda: MaxNewTokens(1000),
}
PROMPTS = [[1, 2, 3], [4] * 25, [5]]

every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


def queueing(sampler: Sampler, **options: Any) -> QueueingDecoder:
    """A decoder that queues, with a row more than the prompts."""
    return QueueingDecoder(TABLE, batch_size=4, max_length=40, processors=CHAIN, sampler=sampler, **options)


def generator(decoder: Any, stop: Any = None, **parts: Any) -> Generator:
    """A generator over *decoder*; of the chain and the sampler if it is a queueing one."""
    own = decoder.sampler if isinstance(decoder, QueueingDecoder) else Greedy()
    sampler = parts.pop("sampler", own)
    stop = MaxNewTokens(12) if stop is None else stop
    return Generator(decoder, processors=parts.pop("processors", CHAIN), sampler=sampler, stop=stop, **parts)


def counts(result: Generation) -> dict[str, Any]:
    """The statistics without seconds."""
    fields = attrs.asdict(result.statistics)
    return {name: value for name, value in fields.items() if "seconds" not in name}


class TestTokens:
    @every_sampler
    @pytest.mark.parametrize("stop", STOPS)
    def test_are_those_of_a_run_without_overlap(self, sampler: Sampler, stop: str) -> None:
        """Ragged rows that end one after another, by count, token, history, score and position."""
        decoder, plain = queueing(sampler), queueing(sampler, async_mode=False)
        host = ScriptedDecoder(TABLE, batch_size=4, max_length=40)

        found = generator(decoder, STOPS[stop](), sampler=sampler)(PROMPTS)
        expected = generator(plain, STOPS[stop](), sampler=sampler)(PROMPTS)

        assert generator(host, STOPS[stop](), sampler=sampler)(PROMPTS).ids == expected.ids == found.ids
        assert expected.finishes == found.finishes
        assert decoder.fed_unread > 0
        assert [] == plain.log

    @given(
        rows=st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), min_size=1, max_size=4),
        stop=st.sampled_from(sorted(STOPS)),
        sampler=st.sampled_from(sorted(SAMPLERS)),
    )
    def test_of_any_prompts(self, rows: list[list[int]], stop: str, sampler: str) -> None:
        """Twice over one decoder, so that the second run begins over what the first left behind."""
        decoder = queueing(SAMPLERS[sampler])
        plain = queueing(SAMPLERS[sampler], async_mode=False)

        for prompts in (rows, [row[:1] for row in rows]):
            found, expected = (
                generator(one, STOPS[stop](), sampler=SAMPLERS[sampler])(prompts) for one in (decoder, plain)
            )
            assert expected.ids == found.ids
            assert expected.finishes == found.finishes

    @every_sampler
    @pytest.mark.parametrize("stop", [name for name in STOPS if name != "scores"])
    def test_statistics_are_the_same(self, sampler: Sampler, stop: str) -> None:
        """The forward that is discarded at the end is not counted."""
        found, expected = (
            generator(queueing(sampler, async_mode=queues), STOPS[stop](), sampler=sampler)(PROMPTS)
            for queues in (True, False)
        )

        assert counts(expected) == counts(found)

    def test_a_row_that_has_no_token_left_says_why(self) -> None:
        """It reads the logits of a forward that another has followed."""
        decoder = queueing(Greedy())
        decoder.processors = _FromLength(6)

        results = [
            generator(one, processors=decoder.processors)([[1, 2, 3], [2, 3]])
            for one in (decoder, ScriptedDecoder(TABLE, batch_size=4, max_length=40))
        ]

        assert results[0].ids == results[1].ids
        assert results[0].finishes == results[1].finishes
        assert {"no_token_left"} == {finish.reason for finish in results[0].finishes if finish}

    def test_a_verification_may_replace_a_token(self) -> None:
        """The forward that was queued with the sampled one is then discarded."""
        results = [
            generator(one, verification=_NextToken())(PROMPTS)
            for one in (queueing(Greedy()), ScriptedDecoder(TABLE, batch_size=4, max_length=40))
        ]

        assert results[0].ids == results[1].ids

    def test_are_the_same_when_they_are_in_the_cache(self) -> None:
        """A run that is repeated queues as the first did, and its first token, as the prompt is there too."""
        decoder = queueing(Greedy())
        first = generator(decoder)(PROMPTS).ids
        queued = decoder.fed_unread

        assert first == generator(decoder)(PROMPTS).ids
        assert 2 * queued + 1 == decoder.fed_unread > 1

    def test_a_part_that_reads_scores_ends_the_overlap(self) -> None:
        """Its scores take a second forward, so that queueing would cost more than it gives."""
        decoder = queueing(Greedy())
        generator(decoder, LowConfidence(1e-6) | MaxNewTokens(20))([[1, 2]])

        assert [("queue", 0), ("queue", 1), ("read", 0)] == decoder.log


class _NextToken(ExactMatch):
    """Takes the token after the sampled one."""

    def __call__(self, draft: Any, tokens: Any, scores: Any, window: Any) -> Any:
        accepted, following = super().__call__(draft, tokens, scores, window)
        return accepted, (following + 1) % VOCAB


@attrs.frozen
class _FromLength:
    """Forbids every token from a length on, without the ids."""

    length: int

    def __call__(self, logits: torch.Tensor, history: Any) -> torch.Tensor:
        return logits.masked_fill((history.length >= self.length)[..., None], -torch.inf)


class TestOrder:
    def test_a_forward_is_queued_before_the_sample_that_it_is_fed_is_read(self) -> None:
        """The first token comes with the prompt; then one forward is ahead, and the last is left unread."""
        decoder = queueing(Greedy())
        generator(decoder, MaxNewTokens(4))([[1, 2]])

        ahead = [
            ("queue", 0),
            ("queue", 1),
            ("read", 0),
            ("queue", 2),
            ("read", 1),
            ("queue", 3),
            ("read", 2),
        ]
        assert ahead == decoder.log
        assert 3 == decoder.fed_unread

    def test_nothing_is_queued_behind_the_last_position(self) -> None:
        """A row whose next token fills the last place is not fed again, while others are."""
        decoder = queueing(Greedy())
        result = generator(decoder, MaxNewTokens(1000))([[1] * 38])

        assert 3 == len(result.ids[0])
        assert [("queue", 0), ("queue", 1), ("read", 0), ("read", 1)] == decoder.log

    def test_rows_that_have_ended_are_not_fed(self) -> None:
        """Only the forward that was queued before the row ended holds it."""
        decoder = queueing(Greedy())
        generator(decoder, StopWhen(lambda history: history.length[:, 0] >= 9))([[1] * 6, [2] * 3])
        decoder.run()

        # Row 0 ended with 9 tokens, and the forward of the ninth was queued.
        assert (decoder.slots[0] >= 0).sum() <= 9
        assert (decoder.slots[1] >= 0).sum() <= 9

    @pytest.mark.parametrize(
        "parts",
        [
            {"drafter": PromptLookup()},
            {"record_gap": True},
            {"exact_width": True},
            {"processors": Temperature(0.5)},
        ],
        ids=repr,
    )
    def test_is_plain_where_it_would_not_pay(self, parts: dict[str, Any]) -> None:
        """Drafts, gaps, another program, and another chain than the device's."""
        decoder = queueing(Greedy())
        host = ScriptedDecoder(TABLE, batch_size=4, max_length=40)

        assert generator(host, **parts)(PROMPTS).ids == generator(decoder, **parts)(PROMPTS).ids
        assert [] == decoder.log

    def test_is_plain_for_log_probabilities(self) -> None:
        """They read the logits of each step."""
        decoder = queueing(Greedy())
        generator(decoder)(PROMPTS, logprobs=Logprobs())

        assert [] == decoder.log

    def test_may_be_switched_within_a_run(self) -> None:
        """Off in its middle and on again: the same text."""
        decoder = queueing(Greedy())
        expected = generator(queueing(Greedy(), async_mode=False))(PROMPTS).ids
        found: list[list[int]] = [[], [], []]
        for number, event in enumerate(generator(decoder).stream(PROMPTS)):
            found[event.row] += event.ids
            decoder.async_mode = number % 7 < 3

        assert expected == found
        assert 0 < decoder.fed_unread < 11


class TestStream:
    @every_sampler
    def test_events_are_the_same(self, sampler: Sampler) -> None:
        """One by one, and those that a streamer gets."""
        heard: list[list[Event]] = [[], []]
        streams = [
            list(generator(queueing(sampler, async_mode=queues), sampler=sampler).stream(PROMPTS))
            for queues in (True, False)
        ]
        for events, queues in zip(heard, (True, False), strict=True):
            generator(queueing(sampler, async_mode=queues), sampler=sampler)(
                PROMPTS, streamer=Callback(events.append)
            )

        assert streams[0] == streams[1]
        assert heard[0] == heard[1] == streams[0]

    @pytest.mark.parametrize("taken", range(8))
    def test_may_be_closed_anywhere(self, taken: int) -> None:
        """What is still queued does not reach the next run, which may share the prefix."""
        decoder, plain = queueing(Greedy()), queueing(Greedy(), async_mode=False)
        stream = generator(decoder).stream(PROMPTS)
        for _ in range(taken):
            next(stream)
        stream.close()

        for prompts in (PROMPTS, [[1, 2], [4] * 24, [6, 6]]):
            assert generator(plain)(prompts).ids == generator(decoder)(prompts).ids

    def test_two_runs_may_share_a_decoder(self) -> None:
        """By turns of four tokens in the same row: a queued sample is right, what follows is fed again."""
        decoder = queueing(Greedy())
        streams = [generator(decoder).stream([[start, 2, 3]]) for start in (1, 7)]
        found: list[list[int]] = [[], []]
        for _ in range(3):
            for ids, stream in zip(found, streams, strict=True):
                for _ in range(4):
                    ids += next(stream).ids

        plain = queueing(Greedy(), async_mode=False)
        assert [generator(plain)([[start, 2, 3]]).ids[0] for start in (1, 7)] == found
        assert decoder.fed_unread > 0

    def test_a_decoder_is_not_kept_alive(self) -> None:
        """By the overlap, which has its slots."""
        decoder = queueing(Greedy())
        generator(decoder)([[1, 2]])
        slots = Slots.of(decoder)
        del decoder
        gc.collect()

        with pytest.raises(ReferenceError):
            _ = slots.decoder.shape


class TestInterrupts:
    @pytest.mark.parametrize("failing", range(5))
    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    def test_while_a_sample_is_awaited(self, failing: int, error: type[BaseException]) -> None:
        """The next run over the decoder trusts no slot that was written meanwhile."""

        def interrupt(number: int) -> None:
            if number == failing:
                raise error

        decoder = queueing(Greedy(), before_read=interrupt)
        with pytest.raises(error):
            generator(decoder)(PROMPTS)
        decoder.before_read = lambda number: None

        assert generator(queueing(Greedy(), async_mode=False))(PROMPTS).ids == generator(decoder)(PROMPTS).ids

    def test_slots_behind_a_queued_token_are_forgotten(self) -> None:
        """An earlier run left tokens there, which followed another one."""
        decoder, plain = queueing(Greedy()), queueing(Greedy(), async_mode=False)
        prompt = [1, 2, 3]
        (first,) = generator(plain, MaxNewTokens(1))([prompt]).ids[0]
        left = [(first + 1) % VOCAB] * 8
        generator(decoder, MaxNewTokens(1))([[*prompt, *left]])

        def interrupt(number: int) -> None:
            raise KeyboardInterrupt

        decoder.before_read = interrupt
        with pytest.raises(KeyboardInterrupt):
            generator(decoder)([prompt])
        decoder.before_read = lambda number: None

        for again in ([*prompt, *left], [*prompt, first, *left]):
            assert generator(plain)([again]).ids == generator(decoder)([again]).ids

    @pytest.mark.parametrize("of_a_part", [True, False])
    def test_a_step_that_failed_may_be_taken_again(self, of_a_part: bool) -> None:
        """After an error of a stop condition, or of a sample that stays lost: the same tokens."""
        failures = iter([False, False, False, True] + [False] * 100)

        def stop(history: Any) -> torch.Tensor:
            if of_a_part and next(failures):
                raise KeyError
            return history.length[:, 0] >= 40

        def lose(number: int) -> None:
            if number == 3 and not of_a_part:
                raise KeyError

        decoder = queueing(Greedy(), before_read=lose)
        parts = generator(decoder, StopWhen(stop))
        slots = Slots.of(decoder)
        history = first_history(PROMPTS, torch.arange(3), 41)
        loop = DecodeLoop(slots, history, Timers(Statistics()))
        loop.join(begin_run(parts, slots, 3, loop.timers), history, 0)
        found: list[list[int]] = [[], [], []]
        failed = 0
        for _ in range(9):
            try:
                for _, outputs, _ in loop.step():
                    for output in outputs:
                        found[output.row] += output.ids
            except KeyError:
                failed += 1

        expected = generator(queueing(Greedy(), async_mode=False), MaxNewTokens(8))(PROMPTS).ids
        assert 1 == failed
        assert expected == found


class OfRow:
    """Says nothing of rows."""

    def __call__(self, logits: torch.Tensor, history: Any) -> torch.Tensor:
        return logits


class BitExactDecoder(QueueingDecoder):
    """Says that logits depend on a row's tokens alone."""

    bit_exact = True


class TestTable:
    """Requests that join and leave one by one, in rows of one decoder."""

    @staticmethod
    def table(decoder: QueueingDecoder, exact_width: bool = False) -> DecodeLoop:
        """Four free rows."""
        return DecodeLoop.empty(Slots.of(decoder), Timers(Statistics()), exact_width)

    @staticmethod
    def joined(loop: DecodeLoop, row: int, prompt: list[int], stream: int, **parts: Any) -> ActiveRequest:
        """A request in a *row*."""
        one = generator(loop.feeder.decoder, **parts)
        run = begin_run(one.parts, loop.feeder, 1, Timers(Statistics()))
        return loop.join(run, one._history([prompt], [stream]), row)

    @staticmethod
    def advance(loop: DecodeLoop, steps: int) -> dict[ActiveRequest, list[int]]:
        """The tokens of each request."""
        found: dict[ActiveRequest, list[int]] = {}
        for _ in range(steps):
            for request, outputs, _ in loop.step():
                found.setdefault(request, []).extend(outputs[0].ids)
        return found

    @staticmethod
    def alone(sampler: Sampler, prompt: list[int], stream: int, stop: Any = None) -> list[int]:
        """What a request gives by itself, sampled by the host."""
        host = ScriptedDecoder(TABLE, batch_size=1, max_length=40)
        return generator(host, stop, sampler=sampler)([prompt], random_streams=[stream]).ids[0]

    @every_sampler
    def test_one_forward_ahead_for_all(self, sampler: Sampler) -> None:
        """Also after one of them has ended."""
        decoder = queueing(sampler)
        loop = self.table(decoder)
        first = self.joined(loop, 2, [1, 2, 3], 7, stop=MaxNewTokens(4))
        second = self.joined(loop, 0, [5], 8)
        found = self.advance(loop, 12)

        assert self.alone(sampler, [1, 2, 3], 7, MaxNewTokens(4)) == found[first]
        assert self.alone(sampler, [5], 8) == found[second]
        # The first tokens come with the prompts.
        assert 11 == decoder.fed_unread

    def test_a_newcomer_is_not_given_what_was_sampled_for_another(self) -> None:
        """In the row of a request that was cancelled, with its text as the prompt and noise of its own."""
        sampler = Sample(seed=5)
        for stream in range(8):
            decoder = queueing(sampler)
            loop = self.table(decoder)
            cancelled = self.joined(loop, 1, [1, 2, 3], 0)
            text = [1, 2, 3, *self.advance(loop, 5)[cancelled]]
            loop.leave(cancelled)
            newcomer = self.joined(loop, 1, text, stream)

            assert self.alone(sampler, text, stream) == self.advance(loop, 12)[newcomer]

    def test_a_newcomer_waits_for_the_forward_that_is_ahead(self) -> None:
        """It is read for the others, and no forward follows it but the one that feeds all."""
        decoder = queueing(Greedy())
        loop = self.table(decoder)
        first = self.joined(loop, 0, [1, 2, 3], 0)
        begun = self.advance(loop, 4)[first]
        forwards = len(decoder.forwards)
        second = self.joined(loop, 3, [4] * 7, 1)
        step = self.advance(loop, 1)
        assert [first] == list(step)
        found = self.advance(loop, 12)

        assert self.alone(Greedy(), [1, 2, 3], 0) == (begun + step[first] + found[first])[:12]
        assert self.alone(Greedy(), [4] * 7, 1) == found[second]
        # The one that was ahead, one wide one, then one for each token, the last of which is not read.
        assert 1 + 1 + 11 == len(decoder.forwards) - forwards

    def test_one_that_pauses_costs_no_forward(self) -> None:
        """What is ahead is read for the others, and then feeds both again."""
        decoder = queueing(Greedy())
        loop = self.table(decoder)
        first, second = self.joined(loop, 0, [1, 2, 3], 0), self.joined(loop, 1, [5], 1)
        found = self.advance(loop, 3)
        forwards = sum(kind == "queue" for kind, _ in decoder.log)
        steps = beside = 0
        while len(found[second]) < 11:
            loop.pause(second, steps % 3 == 0)
            step = self.advance(loop, 1)
            for request, ids in step.items():
                found[request] += ids
            steps, beside = steps + 1, beside + (len(step) == 2)
        alone = self.alone(Greedy(), [1, 2, 3], 0)

        assert alone[: len(found[first])] == found[first]
        assert self.alone(Greedy(), [5], 1)[:11] == found[second]
        assert sum(kind == "queue" for kind, _ in decoder.log) - forwards <= steps + 1
        # One step reads what is ahead of the first alone, and the next one feeds both.
        assert 3 <= beside

    @every_sampler
    @pytest.mark.parametrize("beside", [True, False])
    def test_a_request_waits_until_all_its_rows_are_sampled(self, sampler: Sampler, beside: bool) -> None:
        """Where the forward that is ahead feeds one of its two rows: neither takes a token from it."""
        decoder = queueing(sampler)
        loop = self.table(decoder)
        one = generator(decoder)
        run = begin_run(one.parts, loop.feeder, 2, Timers(Statistics()))
        pair = loop.join(run, one._history([[1, 2, 3], [5]], [7, 8]), 1)
        other = self.joined(loop, 0, [4] * 3, 9) if beside else None
        found: dict[tuple[ActiveRequest, int], list[int]] = {}

        def advance(steps: int) -> set[ActiveRequest]:
            told = set()
            for request, outputs, _ in (result for _ in range(steps) for result in loop.step()):
                told.add(request)
                for output in outputs:
                    found.setdefault((request, output.row), []).extend(output.ids)
            return told

        advance(4)
        assert loop._overlap is not None
        loop._overlap.forget([2])
        waits = advance(1)
        advance(12)

        assert ({other} if beside else set()) == waits
        assert self.alone(sampler, [1, 2, 3], 7) == found[pair, 0]
        assert self.alone(sampler, [5], 8) == found[pair, 1]
        if other is not None:
            assert self.alone(sampler, [4] * 3, 9) == found[other, 0]

    def test_scores_are_read_by_one(self) -> None:
        """While it is there no forward is ahead; the device samples for both all the same."""
        decoder = queueing(Greedy())
        loop = self.table(decoder)
        stop = LowConfidence(1e-6) | MaxNewTokens(6)
        reads = [self.joined(loop, row, [1, 2, 3], row, stop=stop) for row in (0, 2)]
        other = self.joined(loop, 1, [5], 1)
        found = self.advance(loop, 6)
        queued, sampled = decoder.fed_unread, decoder.sampled
        for one in reads:
            assert self.alone(Greedy(), [1, 2, 3], 0, MaxNewTokens(6)) == found[one]
            loop.leave(one)
        more = self.advance(loop, 6)

        assert self.alone(Greedy(), [5], 1) == found[other] + more[other]
        # Of the first token that was ahead both have read the scores.
        assert 1 == queued < decoder.fed_unread
        assert 4 < sampled

    @pytest.mark.parametrize(
        "parts", [{"processors": Temperature(0.5)}, {"drafter": PromptLookup()}], ids=["chain", "drafter"]
    )
    def test_beside_a_request_that_cannot(self, parts: dict[str, Any]) -> None:
        """No forward is ahead until it has left; another chain than the device's takes the host for all."""
        decoder = queueing(Greedy())
        loop = self.table(decoder)
        first = self.joined(loop, 0, [1, 2, 3], 0)
        other = self.joined(loop, 1, [5] * 6, 1, **parts)
        found = self.advance(loop, 6)
        sampled = decoder.sampled
        assert 0 == decoder.fed_unread
        loop.leave(other)
        more = self.advance(loop, 6)

        assert self.alone(Greedy(), [1, 2, 3], 0) == found[first] + more[first]
        assert 0 < decoder.fed_unread
        assert ("drafter" in parts) == (sampled > 0)

    @pytest.mark.parametrize("chain", [Temperature(0.8) | OfRow(), Temperature(0.8)], ids=["of rows", "any"])
    def test_parts_of_rows_are_sampled_by_the_host(self, chain: Any) -> None:
        """Unless they say that a row's result does not depend on which it is."""
        decoder = queueing(Greedy())
        decoder.processors = chain
        loop = self.table(decoder)
        self.joined(loop, 2, [1, 2, 3], 0, processors=chain)
        self.advance(loop, 6)

        assert (chain.row_independent) == (decoder.fed_unread > 0)

    def test_a_bit_exact_decoder_is_sampled_by_the_host(self) -> None:
        """Where no neighbour changes a logit, none changes the place that samples."""
        decoder = BitExactDecoder(TABLE, batch_size=4, max_length=40, processors=CHAIN, sampler=Greedy())
        loop = self.table(decoder)
        only = self.joined(loop, 0, [1, 2, 3], 0)

        assert self.alone(Greedy(), [1, 2, 3], 0) == self.advance(loop, 12)[only]
        assert 0 == decoder.fed_unread == decoder.sampled

    def test_one_program_does_not_depend_on_the_others(self) -> None:
        """With one width for every token the host samples in a table."""
        decoder = queueing(Greedy())
        loop = self.table(decoder, exact_width=True)
        only = self.joined(loop, 0, [1, 2, 3], 0)

        assert self.alone(Greedy(), [1, 2, 3], 0) == self.advance(loop, 12)[only]
        assert 0 == decoder.fed_unread == decoder.sampled
