"""Random requests in one table, beside the same requests alone."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from decodekit.decoding import (
    AdaptiveP,
    EndOfSequence,
    Finish,
    Generator,
    Greedy,
    MaxLength,
    MaxNewTokens,
    Mirostat,
    Sample,
    StopTokens,
    StopWhen,
)
from decodekit.decoding.cache.slots import feeder_of
from decodekit.decoding.engine.active_request import ActiveRequest
from decodekit.decoding.engine.decode_loop import DecodeLoop
from decodekit.decoding.engine.parts import begin_run
from decodekit.decoding.protocols import Decoder, Drafter
from decodekit.decoding.results.statistics import Statistics
from decodekit.decoding.results.timers import Timers
from decodekit.processors import (
    DRY,
    Chain,
    FrequencyPenalty,
    LogitBias,
    MinNewTokens,
    MinP,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
    Typical,
)

from .sampling_decoder import SamplingDecoder

Result = list[tuple[list[int], Finish | None]]
"""The new ids of each row, and why it ended."""


def chains(dice: random.Random, rows: int) -> Chain:
    """One of twelve kinds of chain, some with a parameter for each row."""
    each = [dice.uniform(0.5, 2.0) for _ in range(rows)]
    return dice.choice(
        [
            lambda: Chain([]),
            lambda: RepetitionPenalty(1.3) | Temperature(0.7),
            lambda: Temperature(torch.tensor(each)) | TopP(0.9),
            lambda: TopK(4) | TopP(0.8),
            lambda: NoRepeatNgram(2) | SuppressTokens([3]),
            lambda: MinNewTokens(3, [0, 1]) | Temperature(1.5),
            lambda: RepetitionPenalty(torch.tensor(each), window=4) | TopK(5),
            lambda: FrequencyPenalty(0.5) | PresencePenalty(0.3),
            lambda: DRY(0.8, allowed_length=1) | MinP(0.05),
            lambda: LogitBias({2: 1.0, 5: -2.0}) | Typical(0.9),
            lambda: TopK(torch.tensor([dice.randint(2, 6) for _ in range(rows)])) | Temperature(2.0),
            lambda: Chain([Temperature(0.8), TopK(6), TopP(0.9), MinP(0.02)]),
        ]
    )()


def stops(dice: random.Random, rows: int) -> Any:
    """Limits, tokens and functions, some with a limit for each row."""
    most = MaxNewTokens([dice.randint(1, 12) for _ in range(rows)])
    return dice.choice(
        [
            lambda: most,
            lambda: EndOfSequence([0]) | most,
            lambda: StopTokens([2, 5]) & MaxNewTokens(3) | most,
            lambda: MaxLength(20) | most,
            lambda: StopWhen(lambda history: history.length[:, 0] % 7 == 0) | most,
        ]
    )()


@attrs.frozen(eq=False)
class Wanted:
    """A request: what it is to give, and when."""

    prompts: list[list[int]]
    random_streams: list[int]
    parts: dict[str, Any]
    arrives: int
    leaves: int | None
    """The step before which it is cancelled; None to let it end."""

    def alone(self, decoder: Decoder) -> Result:
        """What it gives by itself."""
        result = Generator(decoder, **self.parts)(self.prompts, random_streams=self.random_streams)
        return list(zip(result.ids, result.finishes, strict=True))


def wanted(dice: random.Random, vocab: int, most_rows: int, drafters: Sequence[Drafter]) -> Wanted:
    """A random request of up to *most_rows* rows, in most cases with one of *drafters*, if there are any."""
    sampler = dice.choice(
        [
            lambda: Greedy(),
            lambda: Sample(seed=dice.randint(0, 9)),
            lambda: Mirostat(3.0),
            lambda: AdaptiveP(0.5),
        ]
    )()
    rows = dice.randint(1, most_rows)
    # Prompts that share a beginning use each other's cache.
    shared = [dice.randrange(vocab) for _ in range(dice.choice([0, 6, 20]))]
    prompts = [shared + [dice.randrange(vocab) for _ in range(dice.randint(1, 14))] for _ in range(rows)]
    parts = {"processors": chains(dice, rows), "sampler": sampler, "stop": stops(dice, rows)}
    if isinstance(sampler, Greedy | Sample) and dice.random() < 0.7 and drafters:
        parts |= {"drafter": dice.choice(drafters), "num_draft_tokens": dice.randint(0, 4)}
    leaves = dice.randint(1, 20) if dice.random() < 0.15 else None
    streams = [dice.randrange(1000) for _ in range(rows)]
    return Wanted(prompts, streams, parts, dice.randint(0, 15), leaves)


def seat(loop: DecodeLoop, rows: int, dice: random.Random) -> int | None:
    """The first of as many free rows; None if there are none."""
    free = set(loop.free())
    places = [row for row in free if set(range(row, row + rows)) <= free]
    return dice.choice(places) if places else None


def together(
    decoder: Decoder, requests: Sequence[Wanted], dice: random.Random
) -> tuple[list[Result], list[bool]]:
    """
    What *requests* give in one table, with random pauses and widths of a step.

    Returns:
        The result of each request, and whether it ran to its end.
    """
    feeder = feeder_of(decoder)
    loop = DecodeLoop.empty(feeder, Timers(Statistics()))
    results: list[Result] = [[([], None) for _ in one.prompts] for one in requests]
    ended = [False] * len(requests)
    waiting = sorted(range(len(requests)), key=lambda number: requests[number].arrives)
    seated: dict[int, ActiveRequest] = {}
    step = 0
    while waiting or seated:
        for number in [one for one in waiting if requests[one].arrives <= step]:
            one = requests[number]
            first = seat(loop, len(one.prompts), dice)
            if first is None:
                continue
            history = one_history(one, decoder)
            parts = Generator(decoder, **one.parts).parts
            run = begin_run(parts, feeder, len(one.prompts), Timers(Statistics()))
            seated[number] = loop.join(run, history, first)
            waiting.remove(number)
        for number, request in list(seated.items()):
            leaves = requests[number].leaves
            if leaves is not None and step > requests[number].arrives + leaves:
                loop.leave(request)
                del seated[number]
                continue
            loop.pause(request, dice.random() < 0.15)
        most = dice.choice([None, 1, 5, 16])
        for request, outputs, learn in loop.step(most, drafts=dice.random() < 0.8):
            number = next(place for place, one in seated.items() if one is request)
            for output in outputs:
                ids, _ = results[number][output.row]
                results[number][output.row] = ([*ids, *output.ids], output.finish)
            learn()
            if not request.active:
                loop.leave(request)
                del seated[number]
                ended[number] = True
        step += 1
        assert step < 2000, "the table makes no progress"
    return results, ended


def one_history(one: Wanted, decoder: Decoder) -> Any:
    """The prompts as a generator lays them out."""
    generator = Generator(decoder, **one.parts)
    return generator._history(one.prompts, one.random_streams)


def check_table(
    dice: random.Random,
    make: Callable[[int], Decoder],
    drafters: Sequence[Drafter],
    rows: int,
    count: int,
    table: SamplingDecoder | None = None,
) -> int:
    """
    Compare *count* random requests in one table with the same alone; the number that ran to their end.

    Args:
        dice: Random numbers.

        make: A decoder of so many rows; always the same model.

        drafters: What requests may share.

        rows: The table's.

        count: The number of requests.

        table: The decoder of the table; most requests then have its chain and sampler. None: as the others.
    """
    vocab = make(rows).shape.vocab_size
    requests = [wanted(dice, vocab, min(rows, 3), drafters) for _ in range(count)]
    if table is not None:
        own = {"processors": table.processors, "sampler": table.sampler}
        requests = [
            attrs.evolve(one, parts=one.parts | own) if dice.random() < 0.8 else one for one in requests
        ]
    results, ended = together(make(rows) if table is None else table, requests, dice)
    for one, result, whole in zip(requests, results, ended, strict=True):
        expected = one.alone(make(len(one.prompts)))
        if whole:
            assert expected == result
        else:
            # Cancelled: what it had is the beginning.
            for (ids, _), (all_ids, _) in zip(result, expected, strict=True):
                assert all_ids[: len(ids)] == ids
    return sum(ended)
