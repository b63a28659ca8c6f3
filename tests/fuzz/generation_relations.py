"""What must hold of any generation, however it is run."""

import io
import random
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from decodekit.decoding import Event, Generation, Generator, History, Sampler, Slots
from decodekit.streaming import BatchDisplay, Callback, FanOut, JsonLines, LatencyMeter

from .generation_case import VOCAB, Case, random_prompts
from .outcomes import outcome_of, summed


def check_same(what: str, expected: Sequence[str], actual: Sequence[str]) -> None:
    """Compare outcomes row by row."""
    assert len(expected) == len(actual), f"{what}: {len(actual)} rows for {len(expected)}"
    for row, (one, other) in enumerate(zip(expected, actual, strict=True)):
        assert one == other, f"{what}: row {row} must be {one}, and is {other}"


def check_rows_alone(case: Case, expected: Sequence[str]) -> None:
    """Each row of the batch equals the row alone, on a decoder of one row."""
    single = case.decoder(1)
    for row in range(len(case.prompts)):
        alone = case.run(case.plain(single, [row]), [row])
        check_same(f"row {row} alone", [expected[row]], outcome_of(alone))


def check_streams(case: Case, generator: Generator, expected: Sequence[str]) -> None:
    """Events add up to the result, from an iterator and through streamers."""
    streamed = list(generator.stream(case.prompts, case.random_streams, case.logprobs))
    check_same("stream", expected, summed(streamed, case.prompts))
    heard: list[Event] = []
    streamers = FanOut(Callback(heard.append), LatencyMeter(), JsonLines(io.StringIO()))
    if generator.tokenizer is not None:
        streamers = FanOut(streamers, BatchDisplay(io.StringIO()))
    result = case.run(generator, streamer=streamers)
    check_same("call with a streamer", expected, outcome_of(result))
    check_same("streamer's events", expected, summed(heard, case.prompts))


def disturb(case: Case, generator: Generator, dice: random.Random) -> str:
    """Leave other tokens in the decoder's cache; what was done."""
    kind = dice.choice(
        ["nothing", "other prompts", "abandoned", "forget", "prompt logprobs", "edited", "logits"]
    )
    if kind == "other prompts":
        others = random_prompts(dice, len(case.prompts))
        generator(others, case.random_streams)
    elif kind == "edited":
        edited = [[*prompt[:-1], (prompt[-1] + 1) % VOCAB] for prompt in case.prompts]
        generator(edited, case.random_streams)
    elif kind == "abandoned":
        stream = generator.stream(case.prompts, case.random_streams, case.logprobs)
        for _ in range(dice.randint(0, 12)):
            if next(stream, None) is None:
                break
        if dice.random() < 0.5:
            stream.close()
    elif kind == "forget":
        Slots.of(generator.decoder).forget()
    elif kind == "prompt logprobs":
        generator.prompt_logprobs(case.prompts, case.random_streams)
    elif kind == "logits":
        generator.logits(case.prompts, case.random_streams)
    return kind


def check_interleaved(case: Case, one: Generator, other: Generator, dice: random.Random) -> None:
    """Two streams over one decoder, in turns, are what each is alone."""
    others = random_prompts(dice, len(case.prompts))
    alone = [
        outcome_of(case.run(one)),
        outcome_of(other(others, case.random_streams, logprobs=case.logprobs)),
    ]
    streams = [
        one.stream(case.prompts, case.random_streams, case.logprobs),
        other.stream(others, case.random_streams, case.logprobs),
    ]
    events: list[list[Event]] = [[], []]
    running = [0, 1]
    while running:
        number = dice.choice(running)
        event = next(streams[number], None)
        if event is None:
            running.remove(number)
        else:
            events[number].append(event)
    for number, prompts in enumerate((case.prompts, others)):
        check_same(f"stream {number} of two in turns", alone[number], summed(events[number], prompts))


@attrs.frozen(eq=False)
class Replay:
    """A sampler of known tokens, for one row."""

    tokens: list[int]

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        place = history.num_generated().clamp(max=len(self.tokens) - 1)
        return torch.tensor(self.tokens)[place]


def check_replay(case: Case, result: Generation) -> None:
    """
    The result of a verification that compares distributions, row by row.

    A row's tokens, sampled one by one in plain decoding, end where and as the row did, with its text
    and log-probabilities; and none of them was forbidden.
    """
    expected, single = outcome_of(result), case.decoder(1)
    for row, ids in enumerate(result.ids):
        if not ids:
            continue
        sampler: Sampler = Replay(ids)
        replayed = case.run(case.plain(single, [row], sampler=sampler), [row])
        if result.finish_reasons[row] not in ("no_token_left", "numeric_overflow"):
            check_same(f"row {row} replayed", [expected[row]], outcome_of(replayed))
        else:
            assert ids == replayed.ids[0][: len(ids)], f"row {row} replayed: {ids} became {replayed.ids[0]}"
        check_allowed(case, row, ids)


def check_allowed(case: Case, row: int, ids: Sequence[int]) -> None:
    """No token of *ids* is forbidden by the chain at its place."""
    generator: Any = case.plain(case.decoder(1), [row], sampler=Replay(list(ids)))
    processed = attrs.evolve(case.logprobs, stage="processed") if case.logprobs else None
    if processed is None:
        return
    result = generator([case.prompts[row]], [case.random_streams[row]], logprobs=processed)
    # Beyond them the replay repeats the last.
    for one in result.logprobs[0][: len(ids)]:
        assert one.logprob != -torch.inf, f"row {row}: token {one.id} was forbidden"
