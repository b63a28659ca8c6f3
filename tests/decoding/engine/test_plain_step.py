"""The plain step gives the same as the loop's general step."""

from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from decodekit.decoding import (
    EndOfSequence,
    Event,
    ExactMatch,
    Generator,
    Greedy,
    History,
    Logprobs,
    MaxLength,
    MaxNewTokens,
    Sample,
    Slots,
    StopTokens,
    StopWhen,
)
from decodekit.decoding.engine.loop import Loop
from decodekit.decoding.engine.plain_step import PlainStep
from decodekit.decoding.sampling.fast_sampling import FastGreedy
from decodekit.decoding.sampling.few_tokens import Cell
from decodekit.decoding.scores import Scores
from decodekit.processors import (
    Chain,
    MinNewTokens,
    NoRepeatNgram,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
)
from decodekit.testing import ScriptedDecoder

from ...strategies import examples

VOCAB = 9
TABLE = torch.randn(53, VOCAB, generator=torch.Generator().manual_seed(3))


@attrs.define(eq=False)
class Recording(ScriptedDecoder):
    """Records its inputs."""

    fed: list[tuple[list[list[int]], list[int]]] = attrs.field(factory=list, init=False)

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """As scripted."""
        self.fed.append((ids.tolist(), cache_pos.tolist()))
        return super().forward(ids, cache_pos)


def forbids_all_at(length: int) -> Any:
    """A processor that leaves no token in the rows that have so many."""
    return lambda logits, history: logits.masked_fill((history.length == length)[..., None], -torch.inf)


PROCESSORS = {
    "none": None,
    "penalty": RepetitionPenalty(1.3) | Temperature(0.7),
    "n-grams": NoRepeatNgram(2) | SuppressTokens([3]),
    "not yet": MinNewTokens(3, [0, 1]),
    "nothing left": Temperature(2.0) | forbids_all_at(6),
}
STOPS = {
    "limits": lambda: MaxNewTokens(7),
    "tokens": lambda: EndOfSequence([0, 1]) | MaxNewTokens(20),
    "both": lambda: (StopTokens([2, 0], hide=True) & MaxNewTokens(3)) | MaxLength(14),
    "function": lambda: StopWhen(lambda history: history.length[:, 0] % 7 == 0) | MaxNewTokens(9),
    "position": lambda: MaxNewTokens(1000),
}
SAMPLERS = {
    "greedy": Greedy(),
    "sample": Sample(seed=3),
    "custom": lambda logits, history: logits.argmin(dim=-1),
}


def run(plainly: bool, *prompts: list[list[int]], table: Tensor = TABLE, **parts: Any) -> tuple[Any, ...]:
    """
    Run after run of one generator: events, what was fed, and counts.

    Args:
        plainly: Whether the step under test may be taken.

        prompts: Those of each run.

        table: What the decoder gives.

        parts: Of the generator.
    """
    decoder = Recording(table, batch_size=3, max_length=16)
    generator = Generator(decoder, **parts)
    told: list[list[Event]] = []
    with pytest.MonkeyPatch.context() as patch:
        if not plainly:
            patch.setattr(Loop, "_is_plain", lambda self: False)
        counts = []
        for some in prompts:
            told.append(list(generator.stream(some)))
            counted = attrs.asdict(generator(some).statistics)
            phases = counted.pop("seconds").keys()
            for of_time in ("first_token_seconds", "total_seconds"):
                counted.pop(of_time)
            counts.append((counted, set(phases)))
    return told, decoder.fed, counts


@settings(deadline=None, max_examples=examples(150))
@given(
    st.sampled_from(sorted(PROCESSORS)),
    st.sampled_from(sorted(SAMPLERS)),
    st.sampled_from(sorted(STOPS)),
    st.lists(
        st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=16), min_size=1, max_size=3),
        min_size=1,
        max_size=2,
    ),
)
def test_nothing_differs(processors: str, sampler: str, stop: str, prompts: list[list[list[int]]]) -> None:
    """Events, forwards and counts of any parts and prompts: one run after another on one decoder."""
    parts = {
        "processors": PROCESSORS[processors],
        "sampler": SAMPLERS[sampler],
        "stop": STOPS[stop](),
    }

    assert run(False, *prompts, **parts) == run(True, *prompts, **parts)


class Reading:
    """Never fires, and keeps the processed logits of the rows that go on, by row and length."""

    finishes = ()

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], list[float]] = {}

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Nothing."""
        for row, length in enumerate(history.length[:, 0].tolist()):
            # A row that has ended is undefined.
            self.seen.setdefault((row, length), scores.logits[row, 0].tolist())
        return torch.zeros_like(history.length)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.integers(0, 2**31),
    st.sampled_from((RepetitionPenalty(3.0, include_prompt=False) | TopK(9) | TopP(0.8), Chain([TopK(3)]))),
    st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=12), min_size=1, max_size=3),
)
def test_nor_among_few_tokens(seed: int, chain: Chain, prompts: list[list[int]]) -> None:
    """Of a vocabulary that is looked through once; rows end at different times, and logits are read."""
    table = 3 * torch.randn(23, 2000, generator=torch.Generator().manual_seed(seed))
    # Now and then one that is not clear: all take the long way then.
    table[::5] = table[::5].round()
    # Some are likely everywhere, in the prompts as well.
    table[:, :12] += 6
    reading = [Reading(), Reading()]
    told = [
        run(
            plainly,
            prompts,
            table=table,
            processors=chain,
            sampler=Sample(seed=seed),
            stop=MaxNewTokens([4, 7, 9][: len(prompts)]) | read,
        )
        for plainly, read in zip((False, True), reading, strict=True)
    ]

    assert told[0] == told[1]
    assert reading[0].seen == reading[1].seen


def test_rows_that_have_ended_are_not_chosen_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows of which one ends after the second token, one after the third, one after the fourth."""
    asked: list[int] = []
    of_cell = FastGreedy.of_cell

    def counted(self: FastGreedy, logits: Any, cell: Cell) -> Any:
        asked.append(len(cell.tokens))
        return of_cell(self, logits, cell)

    monkeypatch.setattr(FastGreedy, "of_cell", counted)
    Generator(ScriptedDecoder(TABLE, batch_size=3), stop=MaxNewTokens([2, 3, 4]))([[1], [2], [3]])

    assert [2, 2, 2, 3, 3, 4] == asked


def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each plain step went on with, from now on."""
    taken: list[int] = []
    call = PlainStep.__call__

    def counted(self: PlainStep, length: Any, rows: Any) -> Any:
        taken.append(len(rows))
        return call(self, length, rows)

    monkeypatch.setattr(PlainStep, "__call__", counted)
    return taken


def test_is_taken_after_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a generator of plain parts, with the rows that have not ended."""
    taken = steps(monkeypatch)
    decoder = ScriptedDecoder(TABLE, batch_size=3)
    Generator(decoder, stop=MaxNewTokens([2, 3, 4]))([[1], [2], [3]])

    assert [3, 2, 1] == taken


class Otherwise(ExactMatch):
    """A custom verification."""


@pytest.mark.parametrize(
    ("parts", "call"),
    [
        ({"record_gap": True}, {}),
        ({"exact_width": True}, {}),
        ({"verification": Otherwise()}, {}),
        ({}, {"logprobs": Logprobs()}),
    ],
    ids=["gap", "exact-width", "verification", "logprobs"],
)
def test_is_not_taken_where_more_is_asked(
    monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any], call: dict[str, Any]
) -> None:
    """The loop's own rounds know how."""
    taken = steps(monkeypatch)
    Generator(ScriptedDecoder(TABLE), stop=MaxNewTokens(5), **parts)([1, 2], **call)

    assert [] == taken


def test_a_decoder_without_width_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is fed in the width that it has."""
    taken = steps(monkeypatch)
    decoder = ScriptedDecoder(TABLE, widths=(5, 16))
    ids = Generator(decoder, stop=MaxNewTokens(5))([1, 2]).ids

    assert [] == taken
    assert Generator(ScriptedDecoder(TABLE), stop=MaxNewTokens(5))([1, 2]).ids == ids


def test_others_in_between_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another stream on the decoder, or a record that was forgotten: then all that is missing is fed."""
    taken = steps(monkeypatch)
    decoder = ScriptedDecoder(TABLE, batch_size=1)
    generator = Generator(decoder, stop=MaxNewTokens(8))
    alone = generator([1, 2, 3]).ids[0]
    events, before = generator.stream([1, 2, 3]), len(taken)
    ids = [*next(events).ids, *next(events).ids]
    assert before + 1 == len(taken)
    generator([4, 5])
    between = len(taken)
    ids += next(events).ids
    assert between == len(taken)
    ids += next(events).ids
    assert between + 1 == len(taken)
    Slots.of(decoder).forget()
    ids += next(events).ids
    assert between + 1 == len(taken)
    ids += [token for event in events for token in event.ids]

    assert alone == ids


def test_the_logits_are_lent_meanwhile() -> None:
    """A part that uses the decoder whose logits it looks at is refused in this step as well."""
    decoder = ScriptedDecoder(TABLE)
    inner = Generator(decoder, stop=MaxNewTokens(1))

    def nosy(logits: Tensor, history: History) -> Tensor:
        if history.length[0, 0] > 3:
            inner([1])
        return logits

    with pytest.raises(RuntimeError, match="must not use the decoder whose logits it looks at"):
        Generator(decoder, processors=nosy, stop=MaxNewTokens(5))([1, 2])

    assert 3 == len(Generator(decoder, stop=MaxNewTokens(3))([1, 2]).ids[0])


def test_needs_no_gradient() -> None:
    """Of a decoder whose logits would carry one."""

    class Training(ScriptedDecoder):
        def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
            assert not torch.is_grad_enabled()
            return super().forward(ids, cache_pos)

    assert 4 == len(Generator(Training(TABLE), stop=MaxNewTokens(4))([1, 2]).ids[0])
