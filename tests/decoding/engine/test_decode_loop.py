"""The decoding loop: short cuts change nothing, and every token is fed once."""

from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from decodekit.decoding import (
    EndOfSequence,
    Event,
    Generator,
    Greedy,
    History,
    MaxLength,
    MaxNewTokens,
    Sample,
    Slots,
    StopTokens,
    StopWhen,
)
from decodekit.decoding.engine import run as engine_run
from decodekit.decoding.sampling.pipeline import SamplingPipeline
from decodekit.decoding.scores import Scores
from decodekit.decoding.token_feeder import Fed
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
from decodekit.speculation import PromptLookup
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


def without_short_cuts(
    self: SamplingPipeline, logits: Tensor, history: History, rows: object = None, columns: object = None
) -> tuple[Tensor, Scores]:
    """A call of the pipeline on the whole vocabulary."""
    return self.run_stages(logits, history)


def run(short_cuts: bool, *prompts: list[list[int]], table: Tensor = TABLE, **parts: Any) -> tuple[Any, ...]:
    """
    Run after run of one generator: events, what was fed, and counts.

    Args:
        short_cuts: Whether stop conditions may read tokens one by one, and chains few logits.

        prompts: Those of each run.

        table: What the decoder gives.

        parts: Of the generator.
    """
    decoder = Recording(table, batch_size=3, max_length=16)
    generator = Generator(decoder, **parts)
    told: list[list[Event]] = []
    with pytest.MonkeyPatch.context() as patch:
        if not short_cuts:
            patch.setattr(engine_run, "by_token", lambda stop: None)
            patch.setattr(SamplingPipeline, "__call__", without_short_cuts)
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
            short_cuts,
            prompts,
            table=table,
            processors=chain,
            sampler=Sample(seed=seed),
            stop=MaxNewTokens([4, 7, 9][: len(prompts)]) | read,
        )
        for short_cuts, read in zip((False, True), reading, strict=True)
    ]

    assert told[0] == told[1]
    assert reading[0].seen == reading[1].seen


def test_rows_that_have_ended_are_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows of which one ends after the second token, one after the third, one after the fourth."""
    asked: list[Any] = []
    call = SamplingPipeline.__call__

    def recorded(self: SamplingPipeline, logits: Tensor, history: History, rows: Any, columns: Any) -> Any:
        asked.append(rows)
        return call(self, logits, history, rows, columns)

    monkeypatch.setattr(SamplingPipeline, "__call__", recorded)
    Generator(ScriptedDecoder(TABLE, batch_size=3), stop=MaxNewTokens([2, 3, 4]))([[1], [2], [3]])

    assert [None, None, [1, 2], [2]] == asked


def tokens_fed(decoder: Recording) -> list[int]:
    """The number of tokens in each forward."""
    return [sum(token >= 0 for row in ids for token in row) for ids, _ in decoder.fed]


def test_a_new_token_is_fed_alone() -> None:
    """After the prompts, each forward takes one token of each row that has not ended."""
    decoder = Recording(TABLE, batch_size=3)
    Generator(decoder, stop=MaxNewTokens([2, 3, 4]))([[1], [2, 3], [3]])

    assert [4, 3, 2, 1] == tokens_fed(decoder)


def test_a_decoder_without_width_1() -> None:
    """Is fed in the width that it has."""
    decoder = Recording(TABLE, widths=(5, 16))
    ids = Generator(decoder, stop=MaxNewTokens(5))([1, 2]).ids

    assert [2, 1, 1, 1, 1] == tokens_fed(decoder)
    assert Generator(ScriptedDecoder(TABLE), stop=MaxNewTokens(5))([1, 2]).ids == ids


def test_others_in_between_are_noticed() -> None:
    """Another stream on the decoder, or a cache that was forgotten: then all that is missing is fed."""
    decoder = Recording(TABLE, batch_size=1)
    generator = Generator(decoder, stop=MaxNewTokens(8))
    alone = generator([1, 2, 3]).ids[0]
    events = generator.stream([1, 2, 3])
    ids = [*next(events).ids, *next(events).ids]
    generator([4, 5])
    decoder.fed.clear()
    ids += next(events).ids
    ids += next(events).ids
    Slots.of(decoder).forget()
    ids += next(events).ids

    assert [5, 1, 7] == tokens_fed(decoder)
    assert alone == [*ids, *(token for event in events for token in event.ids)]


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


class Doubled:
    """A feeder that adds up the logits of two decoders, as an ensemble does."""

    def __init__(self, one: ScriptedDecoder, other: ScriptedDecoder) -> None:
        self.both = Slots(one), Slots(other)
        self.shape, self.tree_widths, self.lock = one.shape, (), self.both[0].lock
        self.logits_in_use, self.rows = False, one.batch_size + other.batch_size
        self.row_widths: tuple[int, ...] = ()

    copied = property(lambda self: self.both[0].copied)
    counts = property(lambda self: self.both[0].counts)

    def feed(self, history: History, length: Tensor, need: Tensor, **options: Any) -> Fed:
        """Feed both."""
        first, second = (slots.feed(history, length, need, **options) for slots in self.both)
        return Fed(Scores(lambda: first.logits + second.logits), first.ready, first.all_ready)

    def missing(self, history: History, length: Tensor) -> Tensor:
        """Both are fed the same."""
        return self.both[0].missing(history, length)


@attrs.define(eq=False)
class Ensemble(ScriptedDecoder):
    """A decoder that stands for two."""

    other: ScriptedDecoder | None = None
    both: Doubled | None = None

    decoders = property(lambda self: (self, self.other))

    def feeder(self) -> Doubled:
        """The same object at every call."""
        assert self.other is not None
        self.both = self.both or Doubled(self, self.other)
        return self.both


@pytest.mark.parametrize("drafter", [None, PromptLookup()], ids=["plain", "lookup"])
def test_a_decoder_may_offer_a_feeder_of_its_own(drafter: Any) -> None:
    """Two decoders whose logits are added up give the text of the table of sums."""
    other = torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(4))
    parts = {"stop": MaxNewTokens(12), "sampler": Sample(seed=2)}
    ensemble = Ensemble(TABLE, batch_size=2, other=ScriptedDecoder(other, batch_size=2))
    prompts = [[1, 2, 3, 1, 2], [4]]
    expected = Generator(ScriptedDecoder(TABLE + other, batch_size=2), **parts)(prompts).ids

    assert expected == Generator(ensemble, drafter=drafter, **parts)(prompts).ids
    assert len(ensemble.forwards) == len(ensemble.other.forwards) > 0
