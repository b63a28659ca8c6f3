"""What a run counts."""

import importlib
import itertools
import math
import random
import statistics as by_definition
import sys
import time
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.decoding import (
    AdaptiveP,
    DecoderShape,
    Draft,
    EndOfSequence,
    Event,
    ExactMatch,
    Generation,
    Generator,
    Greedy,
    History,
    MaxNewTokens,
    Sample,
    Statistics,
    StopTokens,
)
from decodekit.decoding.protocols import Sampler, SamplesTokens
from decodekit.decoding.results.timers import Timers
from decodekit.decoding.sampling import noise
from decodekit.decoding.scores import Scores
from decodekit.processors import RepetitionPenalty, Temperature, TopK
from decodekit.speculation import DraftModel, PromptLookup, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder, last_token

VOCAB = 12
COUNT_UP = torch.eye(8).roll(1, dims=1) * 9


def of_drafts(*drafts: tuple[int, int], row: int = 0) -> Statistics:
    """Statistics of verifications, each given by the draft tokens drafted and accepted."""
    statistics = Statistics()
    for drafted, accepted in drafts:
        statistics.record(accepted + 1, drafted, accepted, row)
    return statistics


@attrs.frozen(eq=False)
class Recorder:
    """Decoder, verification and streamer in one: writes down everything that passes."""

    decoder: ScriptedDecoder
    log: list[tuple[Any, ...]] = attrs.field(factory=list)

    @property
    def shape(self) -> DecoderShape:
        return self.decoder.shape

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        self.log.append(("forward", ids.clone()))
        return self.decoder.forward(ids, cache_pos)

    def drafting(self, sampler: Sampler, start: Tensor) -> Sampler:
        return sampler

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        round_ = (draft.ids.tolist(), choices.tolist(), scores.logits.clone(), window)
        self.log.append(("verify", *round_))
        return ExactMatch()(draft, choices, scores, window)

    def put_event(self, event: Event) -> None:
        self.log.append(("event", event))

    def end(self) -> None:
        pass


@attrs.define(eq=False)
class Recount:
    """The same numbers, from what a :class:`Recorder` wrote down."""

    tokens: int = 0
    forwards: int = 0
    first_tokens: int = 0
    columns: int = 0
    padding: int = 0
    given: int = 0
    lengths: list[tuple[int, int, int]] = attrs.field(factory=list)
    """Row, drafted and accepted tokens of each verification."""
    gaps: list[float] = attrs.field(factory=list)

    def read(self, log: list[tuple[Any, ...]], seed: int | None) -> None:
        """Go through *log*, in whose steps forwards come first, then a verification, then events."""
        steps = 0
        for kind, *what in log:
            if kind == "forward":
                self.forwards += 1
                if steps:
                    self.columns += what[0].numel()
                    self.padding += int((what[0] == -1).sum())
            elif kind == "verify":
                verified, steps = what, steps + 1
            else:
                self.event(what[0], steps > 1, *verified, seed)

    def event(
        self,
        event: Event,
        begun: bool,
        drafts: list[list[int]],
        choices: list[list[int]],
        logits: Tensor,
        window: History,
        seed: int | None,
    ) -> None:
        row, kept = event.row, len(event.ids)
        self.tokens += kept
        for column in range(kept):
            length, stream = window.length[row, column], window.random_stream[row : row + 1]
            self.gaps.append(gap(logits[row, column].double().tolist(), length, stream, seed))
        if not begun:
            self.first_tokens += kept
            return
        self.given += kept
        drafted = list(itertools.takewhile(lambda i: i >= 0, drafts[row]))
        accepted = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(drafted, choices[row]))))  # noqa: B905  # one choice more
        if event.finish and event.finish.reason != "no_token_left" and kept <= accepted:
            self.lengths.append((row, kept, kept))
        else:
            self.lengths.append((row, len(drafted), accepted))


def gap(logits: list[float], position: Tensor, stream: Tensor, seed: int | None) -> float:
    """The margin of the best token; for sampling that of the block or of the token, by definition."""
    if seed is None:
        first, second = sorted(logits)[:-3:-1]
        return first - second
    size = math.isqrt(len(logits) - 1) + 1
    blocks = [logits[at : at + size] for at in range(0, len(logits), size)]

    def noised(values: list[float], purpose: int) -> list[float]:
        numbers = noise.gumbel(stream, position, purpose, torch.arange(len(values))).tolist()
        return [value + number for value, number in zip(values, numbers, strict=True)]

    masses = noised([math.log(sum(map(math.exp, b)) or 1e-300) for b in blocks], noise.BLOCK)
    drawn = noised(blocks[masses.index(max(masses))], noise.TOKEN)
    return min(sorted(values)[-1] - sorted(values)[-2] for values in (masses, drawn) if len(values) > 1)


def nothing_after(token: int) -> Any:
    """A processor that leaves no token after *token*."""

    def processor(logits: Tensor, history: History) -> Tensor:
        newest = history.ids[:, 0].gather(1, history.length - 1)
        return logits.masked_fill((newest == token)[..., None], -torch.inf)

    return processor


@attrs.frozen(eq=False)
class Ragged:
    """Drafts as *drafter* does, but sometimes stops early, differently in each row."""

    drafter: Any

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        draft = self.drafter.propose(history, budget, sample)
        short = (history.length + torch.arange(len(budget))[:, None] * 5) % 7
        return Draft(draft.ids.masked_fill(torch.arange(draft.ids.shape[1]) >= short, -1))


def run(seed: int) -> tuple[Generation, Recount]:
    """A run over ragged rows beside an idle one, with stops inside multi-token outputs, and its recount."""
    dice = random.Random(seed)
    table = torch.randn(61, VOCAB, generator=torch.Generator().manual_seed(seed)) * 1.5
    shape: dict[str, Any] = {"batch_size": 4, "max_length": 40, "widths": (1, 3, 6, 16), "scored_width": 6}
    recorder, rows = Recorder(ScriptedDecoder(table, **shape)), dice.randint(1, 4)
    near = table + 0.7 * torch.randn(table.shape, generator=torch.Generator().manual_seed(seed + 1))
    model = DraftModel(ScriptedDecoder(near, **shape))
    drafters = (model, Ragged(model), PromptLookup(), DraftModel(ScriptedDecoder(table, **shape)))
    stops = (
        EndOfSequence([0, 1]) | MaxNewTokens(25),
        MaxNewTokens([3 + 5 * row for row in range(rows)]),
        MaxNewTokens(100),  # to the last position
        StopTokens([4, 9]) & MaxNewTokens(5) | MaxNewTokens(20),
    )
    chains: tuple[Any, ...] = (
        Temperature(0.7),
        RepetitionPenalty(1.3) | Temperature(0.5),
        RepetitionPenalty(1.1) | nothing_after(7),
        Temperature(0.4) | TopK(6),
    )
    fast = SpeculativeGenerator(
        recorder,
        drafters[seed % 4],
        num_draft_tokens=dice.randint(1, 5),
        processors=chains[seed // 4 % 4],
        sampler=Greedy() if seed % 3 == 0 else Sample(seed=seed),
        stop=stops[seed // 16 % 4],
        verification=recorder,
        record_gap=True,
        exact_width=seed % 7 == 0,
    )
    prompts = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 20))] for _ in range(rows)]
    recount, result = Recount(), fast(prompts, streamer=recorder)
    recount.read(recorder.log, None if seed % 3 == 0 else seed)
    return result, recount


class TestAgainstARecount:
    @pytest.mark.mostly_slow(every=4)
    @pytest.mark.parametrize("block", range(4))
    def test_every_number(self, block: int) -> None:
        """In 192 runs, each number equals a recount of forwards, verifications and events."""
        whole = verifications = 0
        for seed in range(48 * block, 48 * (block + 1)):
            result, recount = run(seed)
            statistics, lengths = result.statistics, recount.lengths
            most = max((drafted for _, drafted, _ in lengths), default=0)

            def count(holds: Any, most: int = most, lengths: Any = lengths) -> list[int]:
                return [sum(holds(i, g, a) for _, g, a in lengths) for i in range(most)]

            assert sum(map(len, result.ids)) == recount.tokens == statistics.tokens, seed
            assert recount.forwards == statistics.forwards
            assert recount.first_tokens == statistics.first_tokens
            assert (recount.columns, recount.padding) == (statistics.columns, statistics.padding)
            assert recount.columns - recount.given == statistics.wasted_columns
            assert len(lengths) == statistics.steps
            assert count(lambda i, g, a: i < g) == statistics.drafted
            assert count(lambda i, g, a: i < a) == statistics.accepted
            assert count(lambda i, g, a: i < g and i <= a) == statistics.reached
            for length in range(most + 1):
                assert sum(g == length for _, g, _ in lengths) == statistics.draft_lengths[length]
                assert sum(a == length for _, _, a in lengths) == statistics.accepted_lengths[length]
            for row, (steps, accepted) in enumerate(
                zip(statistics.row_steps, statistics.row_accepted, strict=True)
            ):
                assert sum(r == row for r, _, _ in lengths) == steps
                assert sum(a for r, _, a in lengths if r == row) == accepted
            assert bool(recount.gaps) == (statistics.smallest_gap is not None)
            if recount.gaps:
                assert min(recount.gaps) == pytest.approx(statistics.smallest_gap, rel=1e-9, abs=1e-12)
            whole += sum(0 < g == a for _, g, a in lengths)
            verifications += len(lengths)
        # Drafts that were accepted whole, or were cut by a stop, as well as others.
        assert 50 < whole < verifications - 50

    def test_added_runs_are_one_after_another(self) -> None:
        """The sum of two runs equals a recount of both; the empty one changes nothing."""
        (one, a), (two, b) = run(5), run(22)
        total = sum([one.statistics, two.statistics], Statistics())
        lengths = [*a.lengths, *b.lengths]

        assert a.tokens + b.tokens == total.tokens
        assert a.columns + b.columns - a.given - b.given == total.wasted_columns
        for name in ("forwards", "steps", "first_tokens", "columns", "padding", "total_seconds"):
            assert getattr(one.statistics, name) + getattr(two.statistics, name) == getattr(total, name)
        assert sum(accepted for _, _, accepted in lengths) == sum(total.accepted)
        assert len(one.statistics.row_steps) + len(two.statistics.row_steps) == len(total.row_steps)
        assert min(a.gaps + b.gaps) == pytest.approx(total.smallest_gap, rel=1e-9)
        assert one.statistics.first_token_seconds == total.first_token_seconds
        assert one.statistics.host_seconds + two.statistics.host_seconds == pytest.approx(total.host_seconds)
        assert {**one.statistics.seconds, **two.statistics.seconds}.keys() == total.seconds.keys()


class TestCounts:
    def test_by_position(self) -> None:
        """Of drafts of three and two tokens, two and none are accepted."""
        statistics = of_drafts((3, 2), (2, 0))

        assert [2, 2, 1] == statistics.drafted
        assert [1, 1, 0] == statistics.accepted
        assert [2, 1, 1] == statistics.reached
        assert [0.5, 0.5, 0.0] == statistics.acceptance
        assert [0.5, 1.0, 0.0] == statistics.conditional_acceptance
        assert [1, 0, 1, 0] == statistics.accepted_lengths
        assert [0, 0, 1, 1] == statistics.draft_lengths
        assert 4 == statistics.tokens
        assert 2.0 == statistics.mean_accepted_length

    def test_is_one_without_verifications(self) -> None:
        """Before anything was verified, a forward gives one token."""
        assert 1.0 == Statistics().mean_accepted_length
        assert 0.0 == Statistics().tokens_per_second
        assert [0] == Statistics().accepted_lengths
        assert None is Statistics().smallest_gap

    def test_what_was_never_reached_has_no_share(self) -> None:
        """A second draft token after a first that is never accepted has no conditional rate."""
        statistics = of_drafts((2, 0))

        assert [0.0, 0.0] == statistics.acceptance
        assert math.isnan(statistics.conditional_acceptance[1])

    def test_draft_tokens_after_a_rejected_one_count_as_drafted(self) -> None:
        """A draft that is always wrong: every position was drafted, only the first was reached."""
        target = ScriptedDecoder(COUNT_UP, line=last_token)
        wrong = DraftModel(ScriptedDecoder(COUNT_UP.roll(1, dims=1), line=last_token))
        generator = SpeculativeGenerator(target, wrong, num_draft_tokens=4, stop=EndOfSequence(6))
        statistics = generator([1]).statistics

        assert [4] * 4 == statistics.drafted
        assert [0] * 4 == statistics.accepted
        assert [4, 0, 0, 0] == statistics.reached
        assert 4 * 5 - 4 == statistics.wasted_columns


class TestInterval:
    def test_of_one_row_is_that_of_a_mean(self) -> None:
        """Of lengths 1, 2, 3, 3, 5: their mean, and 1.96 of its standard error to both sides."""
        statistics, lengths = of_drafts((4, 0), (4, 1), (4, 2), (4, 2), (4, 4)), [1, 2, 3, 3, 5]
        error = by_definition.stdev(lengths) / math.sqrt(5)
        low, high = statistics.mean_accepted_length_interval()

        assert by_definition.mean(lengths) == pytest.approx((low + high) / 2)
        assert 2 * 1.959964 * error == pytest.approx(high - low, rel=1e-6)

    def test_of_rows_takes_each_row_as_one_sample(self) -> None:
        """Rows that agree within themselves and differ from each other: the rows' spread counts."""
        rows = [[1] * 9, [5] * 9, [3] * 9, [1] * 9]
        statistics = Statistics()
        for row, lengths in enumerate(rows):
            for length in lengths:
                statistics.record(length, 4, length - 1, row)
        error = by_definition.stdev([1, 5, 3, 1]) / math.sqrt(4)
        low, high = statistics.mean_accepted_length_interval(0.5)

        assert 2.5 == pytest.approx((low + high) / 2)
        assert 2 * 0.6744898 * error == pytest.approx(high - low, rel=1e-6)

    def test_covers(self) -> None:
        """Of 400 runs of twelve rows of their own acceptance, about 95 in 100 intervals hold the truth."""
        dice, held = random.Random(0), 0
        for _ in range(400):
            statistics = Statistics()
            for row in range(12):
                chance = dice.uniform(0.3, 0.9)  # E[accepted of one draft token] = 0.6
                for _ in range(20):
                    statistics.record(1, 1, int(dice.random() < chance), row)
            low, high = statistics.mean_accepted_length_interval()
            held += low <= 1.6 <= high

        assert 0.88 * 400 < held < 0.99 * 400

    def test_knows_when_it_knows_nothing(self) -> None:
        """Fewer than two verifications bound nothing."""
        assert (1.0, math.inf) == Statistics().mean_accepted_length_interval()
        assert (1.0, math.inf) == of_drafts((4, 2)).mean_accepted_length_interval()

    @pytest.mark.parametrize("confidence", [0.0, 1.0, -1, math.nan])
    def test_refuses_what_is_no_confidence(self, confidence: float) -> None:
        """Above 0 and below 1."""
        with pytest.raises(ValueError, match="'confidence' must be above 0 and below 1"):
            Statistics().mean_accepted_length_interval(confidence)


class TestSeconds:
    def test_phases_add_up(self) -> None:
        """A phase that is entered twice has the time of both, also when its body raises."""
        statistics = Statistics()
        for _ in range(2):
            try:
                with Timers(statistics).phase("draft"):
                    before = statistics.seconds.get("draft", 0.0)
                    raise KeyError
            except KeyError:
                pass

        assert {"draft"} == set(statistics.seconds)
        assert statistics.seconds["draft"] > before > 0

    def test_the_consumers_own_time_is_not_the_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By a clock that runs in forwards and in the streamer only: the latter does not count."""
        now = [0.0]
        module = importlib.import_module("decodekit.decoding.results.timers")
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))

        class Slow(ScriptedDecoder):
            def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
                now[0] += 1
                return super().forward(ids, cache_pos)

        class Tokenizer:
            def decode(self, token_ids: list[int], **options: Any) -> str:
                now[0] += 0.125
                return "a" * len(token_ids)

            def convert_ids_to_tokens(self, index: int) -> str:
                return "a"

        class Streamer:
            def put_event(self, event: Event) -> None:
                now[0] += 100

            def end(self) -> None:
                now[0] += 100

        generator = Generator(Slow(COUNT_UP, line=last_token), stop=MaxNewTokens(4), tokenizer=Tokenizer())
        statistics = generator([1], streamer=Streamer()).statistics

        assert {"prefill": 1, "target": 3, "sample": 0, "stop": 0} == statistics.seconds
        assert 4 + statistics.host_seconds == statistics.total_seconds
        assert 1 <= statistics.first_token_seconds < 3
        assert 0 < statistics.host_seconds < 10
        assert 4 / statistics.total_seconds == statistics.tokens_per_second


class TestGap:
    @pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=3)], ids=["greedy", "sample"])
    def test_no_smaller_change_moves_a_choice(self, sampler: Any) -> None:
        """Logits changed by less than half the gap: the same choice. By a little more: another, at worst."""
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(40, 3, 17, generator=generator, dtype=torch.float64)
        logits[:20, :, ::3] = -torch.inf
        length = (1 + torch.arange(3)).expand(40, 3)
        stream = noise.random_streams(torch.arange(40), 3)
        history = History(torch.zeros(40, 1, 4).long(), length, torch.ones(40).long(), stream)
        chosen, half = sampler(logits, history), sampler.gap(logits, history)[..., None] / 2
        moved = torch.zeros_like(chosen, dtype=torch.bool)
        for _ in range(200):
            signs = torch.randint(0, 2, logits.shape, generator=generator) * 2 - 1

            assert torch.equal(chosen, sampler(logits + 0.999 * half * signs, history))
            moved |= chosen != sampler(logits + 1.001 * half * signs, history)
        # The bound is tight: the chosen token alone falling and the next rising is enough.
        assert moved.double().mean() > 0.5

    @pytest.mark.parametrize("vocab", [1, 2, 3])
    def test_of_small_vocabularies(self, vocab: int) -> None:
        """One token has no rival; the blocks of two and three tokens have."""
        target = ScriptedDecoder(torch.zeros(1, vocab))
        gaps = [
            Generator(target, sampler=sampler, stop=MaxNewTokens(3), record_gap=True)([0])
            for sampler in (Greedy(), Sample(seed=0))
        ]
        greedy, sample = (result.statistics.smallest_gap for result in gaps)

        assert (math.inf if vocab == 1 else 0.0) == greedy
        assert sample is not None
        assert sample > 0
        assert (vocab == 1) == math.isinf(sample)

    def test_is_measured_when_asked_for(self) -> None:
        """By default not, and no time is spent on it."""
        statistics = Generator(ScriptedDecoder(COUNT_UP), stop=MaxNewTokens(3))([1]).statistics

        assert None is statistics.smallest_gap
        assert "gap" not in statistics.seconds

    def test_refuses_what_has_none(self) -> None:
        """A sampler without a gap, and a verification that does not go by the sampler."""

        class Compares(ExactMatch):
            compares_scores = True

        decoder = ScriptedDecoder(COUNT_UP)
        with pytest.raises(TypeError, match=r"'sampler' must have gap\(logits, history\)"):
            Generator(decoder, sampler=AdaptiveP(0.5), record_gap=True)
        with pytest.raises(ValueError, match="'record_gap' must be False"):
            Generator(decoder, verification=Compares(), record_gap=True)
        with pytest.raises(TypeError, match="record_gap"):
            Generator(decoder, record_gap=1)  # type: ignore[arg-type]


def known() -> Statistics:
    """Statistics of a known text."""
    statistics = of_drafts((2, 0), (2, 2), (2, 1), (2, 2))
    statistics.record_first(1)
    statistics.forwards, statistics.columns, statistics.padding = 5, 12, 0
    statistics.total_seconds, statistics.first_token_seconds = 2.0, 0.0125
    statistics.seconds = {"draft": 0.5, "target": 1.25}
    return statistics


class TestReport:
    def test_text(self) -> None:
        """A few lines, the histogram among them."""
        expected = """\
10 tokens in 2.000 s: 5.0 tokens/s, the first after 12.5 ms
5 forwards of the target; after the first tokens 12 columns, 3 wasted (25 %), 0 of them padding
τ = 2.250 ± 0.938 (95 %); verifications: 4
accepted times                           acceptance  if all before
       0     1 ████████████
       1     1 ████████████                   0.750          0.750
       2     2 ████████████████████████       0.500          0.667
seconds: draft 0.500, target 1.250, host 0.250"""

        assert expected == str(known())

    def test_text_of_plain_runs(self) -> None:
        """Drafts are left out if there were none; gaps are shown if they were measured."""
        statistics = Statistics(tokens=3, forwards=3, smallest_gap=0.00123)

        assert str(statistics).splitlines()[1:] == [
            "3 forwards of the target",
            "smallest gap 1.23e-03",
            "seconds: host 0.000",
        ]

    @pytest.mark.parametrize(
        ("statistics", "expected"),
        [
            (Statistics(bit_exact=True), ["the same logits at every width, batch and span: proved"]),
            (Statistics(bit_exact=False), []),
            (
                attrs.evolve(known(), bit_exact=False),
                ["the same logits at every width, batch and span: not proved"],
            ),
        ],
    )
    def test_text_of_what_is_proved(self, statistics: Statistics, expected: list[str]) -> None:
        """That it is not matters to drafts."""
        assert expected == [line for line in str(statistics).splitlines() if "proved" in line]

    @pytest.mark.parametrize(
        ("one", "other", "both"),
        [
            (None, None, None),
            (None, True, True),
            (False, None, False),
            (True, True, True),
            (True, False, False),
            (False, True, False),
        ],
    )
    def test_added_runs_are_proved_if_each_is(
        self, one: bool | None, other: bool | None, both: bool | None
    ) -> None:
        """Empty statistics do not count."""
        assert both is (Statistics(bit_exact=one) + Statistics(bit_exact=other)).bit_exact

    def test_a_run_is_added_to_those_before_it(self) -> None:
        """As if it were counted alone and then added: its rows follow, and all have to be proved."""
        runs = [((3, 1), True), ((0, 2), False), ((4,), True)]
        together, alone = Statistics(), Statistics()
        for lengths, proved in runs:
            one = Statistics()
            for counted in (one, together):
                counted.append_run(proved)
                for row, accepted in enumerate(lengths):
                    counted.record(tokens=accepted + 1, drafted=4, accepted=accepted, row=row)
            alone += one

        assert (False, [1] * 5, [3, 1, 0, 2, 4]) == (
            together.bit_exact,
            together.row_steps,
            together.row_accepted,
        )
        assert (alone.bit_exact, alone.row_steps, alone.row_accepted, alone.reached) == (
            together.bit_exact,
            together.row_steps,
            together.row_accepted,
            together.reached,
        )

    def test_text_of_one_verification(self) -> None:
        """An interval that bounds nothing is not shown as one."""
        assert "τ = 3.000; verifications: 1" in str(of_drafts((4, 2)))

    def test_figure(self) -> None:
        """Three plots, of the numbers that the statistics have, and without a window."""
        pytest.importorskip("matplotlib")
        lengths, rates, seconds = known().plot().axes

        assert [1, 1, 2] == [bar.get_height() for bar in lengths.patches]
        assert [[0.75, 0.5], [0.75, 2 / 3]] == [list(line.get_ydata()) for line in rates.lines]
        assert [0.5, 1.25, 0.25] == [bar.get_width() for bar in seconds.patches]
        assert "matplotlib.pyplot" not in sys.modules

    def test_figure_of_nothing(self) -> None:
        """A run without a draft has a figure too."""
        pytest.importorskip("matplotlib")

        assert 3 == len(Statistics().plot().axes)

    def test_figure_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without matplotlib the error names it."""
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ImportError, match="pip install"):
            known().plot()


class TestClock:
    def test_reads_what_was_spent_but_for_waiting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Drafter and target by their phases, everything else besides, without what is left out."""
        now = [10.0]
        monkeypatch.setattr(time, "perf_counter", lambda: now[0])
        statistics = Statistics(seconds={"draft": 5.0})
        timers = Timers(statistics)
        clock = timers.step_clock()
        with timers.phase("draft"):
            now[0] += 1
        now[0] += 100
        clock.leave_out(100.0)
        with timers.phase("target"):
            now[0] += 2
        now[0] += 4

        assert {"draft_seconds": 1.0, "target_seconds": 2.0, "other_seconds": 4.0} == clock.read()


def test_reused_prompt_tokens() -> None:
    """Those of the prompt that the cache held, but for the last, which is fed again for its logits."""
    decoder = ScriptedDecoder(COUNT_UP, batch_size=2)
    generator = Generator(decoder, stop=MaxNewTokens(2))

    runs = [generator(prompts) for prompts in ([[1, 2, 3], [4]], [[1, 2, 3], [4]], [[1, 2, 5], [6]])]

    # Of the last, 1 and 2 were there; 6 was not.
    assert [0, 2 + 0, 2] == [run.statistics.reused for run in runs]
    assert 4 == sum((run.statistics for run in runs), Statistics()).reused
    assert "2 prompt tokens reused" in str(runs[1].statistics)
    assert "reused" not in str(runs[0].statistics)


def test_reused_tokens_of_a_prompt_fed_in_pieces() -> None:
    """A prompt wider than a forward reuses nothing of itself."""
    decoder = ScriptedDecoder(COUNT_UP, widths=(1, 2), scored_width=2, max_length=32)
    generator = Generator(decoder, stop=MaxNewTokens(1))
    prompt = [1, 2, 3, 4, 5, 6, 7]

    assert [0, 6, 3] == [generator([each]).statistics.reused for each in (prompt, prompt, [*prompt[:3], 0])]


def test_tokens_that_were_fed() -> None:
    """All tokens but the last, which nothing follows; of speculation the draft tokens too."""
    plain = Generator(ScriptedDecoder(COUNT_UP, batch_size=2), stop=MaxNewTokens(4))([[1, 2, 3], [4]])

    assert 3 + 1 + 2 * 3 == plain.statistics.tokens_fed
    assert 20 == (plain.statistics + plain.statistics).tokens_fed

    decoder = ScriptedDecoder(COUNT_UP, line=last_token)
    drafts = SpeculativeGenerator(decoder, PromptLookup(), stop=MaxNewTokens(4))([1, 2, 3, 1]).statistics
    fed = 4 + drafts.steps + sum(drafts.drafted)

    assert sum(drafts.drafted) > 0
    assert fed <= drafts.tokens_fed <= fed + 4
