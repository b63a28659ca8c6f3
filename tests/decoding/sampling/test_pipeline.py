"""Chain and sampler as one."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from decodekit.decoding import (
    Finish,
    Generator,
    Greedy,
    History,
    MaxNewTokens,
    Processor,
    Sample,
    Sampler,
    SamplingPipeline,
    StopTokens,
)
from decodekit.processors import (
    Chain,
    Composable,
    LogitBias,
    MinP,
    NoRepeatNgram,
    PresencePenalty,
    RemoveInvalid,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
)
from decodekit.testing import ScriptedDecoder, last_token

from ...processors.test_catalogue import CATALOGUE
from ...strategies import examples

HISTORY = History(torch.zeros(1, 1, 4).long(), torch.tensor([[1, 2]]), torch.tensor([1]), torch.tensor([0]))
ONE_COLUMN = History(HISTORY.ids, HISTORY.length[:, :1], HISTORY.prompt, HISTORY.random_stream)


class TestChoose:
    @pytest.mark.parametrize("chosen", [-1, 2])
    def test_refuses_an_id_that_is_none(self, chosen: int) -> None:
        """From a custom sampler: otherwise a row would end, or the last token be taken."""
        sample = SamplingPipeline(None, lambda logits, history: torch.full(logits.shape[:2], chosen))

        with pytest.raises(ValueError, match="'sampler' must give ids 0 to 1: got"):
            sample(torch.zeros(1, 2, 2), HISTORY)

    def test_gives_the_processed_scores(self) -> None:
        """The scores are what the sampler saw."""
        logits = torch.tensor([[[1.0, 2.0], [4.0, 2.0]]])
        ids, scores = SamplingPipeline(Temperature(2.0), Greedy())(logits, HISTORY)

        assert [[1, 0]] == ids.tolist()
        assert torch.equal(logits / 2, scores.logits)

    def test_no_token_left_is_no_choice(self) -> None:
        """A column without a token, or of garbage, gives -1 and leaves its neighbour alone."""
        for sampler in (Greedy(), Sample(seed=0)):
            for nothing in (-torch.inf, torch.nan):
                logits = torch.tensor([[[nothing, nothing], [0.0, -torch.inf]]])

                assert [[-1, 0]] == SamplingPipeline(None, sampler)(logits, HISTORY)[0].tolist()

    @pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=0)])
    def test_several_are_possible_choices(self, sampler: Sampler) -> None:
        """The first is the choice; what the chain forbids, or is not there, is none; nor is garbage."""
        logits = torch.tensor([[[5.0, 1.0, 4.0], [0.0, torch.nan, 1.0]]])
        sample = SamplingPipeline(SuppressTokens([0]), sampler)
        top_choices = sample.top_choices(logits, HISTORY, 5)

        assert {1, 2} == set(top_choices[0, 0, :2].tolist())
        assert sample(logits, HISTORY)[0][0, 0] == top_choices[0, 0, 0]
        assert [-1, -1, -1] == top_choices[0, 0, 2:].tolist()
        assert [-1] * 5 == top_choices[0, 1].tolist()

    def test_a_sampler_without_top_choices_is_named(self) -> None:
        """A sampler without a ranking cannot give a tree's children."""
        sample = SamplingPipeline(None, lambda logits, history: logits.argmax(dim=-1))

        with pytest.raises(ValueError, match=r"a tree's children take a sampler that has top_choices\(\)"):
            sample.top_choices(torch.zeros(1, 2, 3), HISTORY, 2)

    def test_the_row_ends_and_the_stage_is_named(self) -> None:
        """A chain that forbids everything ends the row with its name, and not the other row."""
        table = torch.full((3, 3), -torch.inf)
        table[0, 1] = table[1, 2] = table[2, 2] = 0.0
        decoder = ScriptedDecoder(table, batch_size=2, line=last_token)
        generator = Generator(
            decoder, processors=Temperature(0.5) | SuppressTokens([1]), stop=MaxNewTokens(3)
        )
        result = generator([[0], [1]])

        assert [[], [2, 2, 2]] == result.ids
        assert result.finishes[0] is not None
        assert ("no_token_left", repr(SuppressTokens([1]))) == (
            result.finishes[0].reason,
            result.finishes[0].matched,
        )

    def test_the_stage_is_found_under_parameters_of_rows(self) -> None:
        """A chain with one value per row is run on the whole batch, and NaN is named."""

        def broken(logits: torch.Tensor, history: History) -> torch.Tensor:
            return torch.cat([logits[..., :1] * torch.nan, logits[..., 1:]], dim=-1)

        decoder = ScriptedDecoder(torch.zeros(1, 3), batch_size=2)
        empty = Generator(decoder, processors=Temperature([0.5, 1.0]) | SuppressTokens([0, 1, 2]))([[1], [2]])
        garbage = Generator(decoder, processors=Temperature([0.5, 1.0]) | broken)([[1], [2]])

        assert [repr(SuppressTokens([0, 1, 2]))] * 2 == [e.matched for e in empty.finishes if e]
        assert [f"{broken!r}, which gave NaN"] * 2 == [e.matched for e in garbage.finishes if e]

    def test_the_prompt_is_not_taken_for_a_choice(self) -> None:
        """When no token was left, a stop that the prompt's last token would meet does not fire."""
        decoder = ScriptedDecoder(torch.full((1, 3), -torch.inf))
        result = Generator(decoder, stop=StopTokens([2]))([1, 2])

        assert [[]] == result.ids
        assert result.finishes[0] is not None
        assert ("no_token_left", "the decoder") == (result.finishes[0].reason, result.finishes[0].matched)

    def test_a_decoder_without_tokens_is_named_too(self) -> None:
        """When the raw logits are empty already, no stage is blamed."""
        logits = torch.full((1, 1, 2), -torch.inf)

        finish = SamplingPipeline(Chain(), Greedy()).finish_without_token(logits, HISTORY, 0, 0)

        assert Finish("no_token_left", "the decoder") == finish

    @pytest.mark.parametrize("processors", [None, TopK(2), RemoveInvalid()])
    @pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=0)])
    def test_logits_that_are_no_numbers_are_an_overflow(
        self, processors: Processor | None, sampler: Sampler
    ) -> None:
        """They end the row, also where a processor masks them."""
        decoder = ScriptedDecoder(torch.full((1, 3), torch.nan))
        result = Generator(decoder, processors=processors, sampler=sampler)([1, 2])

        assert [[]] == result.ids
        assert ["numeric_overflow"] == result.finish_reasons


STAGES = {
    "Temperature": Temperature(0.7),
    "hot": Temperature([0.5, 3.0, 1.0]),
    "TopK": TopK(3),
    "TopK per row": TopK([5, 40, 1]),
    "TopK off in a row": TopK([5, 0, 1]),
    "TopK exactly": TopK([3, 4, 1], ties="first"),
    "TopP": TopP(0.8),
    "TopP per row": TopP([0.3, 1.0, 0.99]),
    "TopP first": TopP(0.6, ties="first", min_tokens=3),
    "TopP keep": TopP(0.9, ties="keep"),
    "MinP": MinP([0.1, 0.9, 0.0]),
    "penalty": RepetitionPenalty(1.5),
    "penalty of the last": RepetitionPenalty(0.7, include_prompt=False, window=3),
    "penalty per row": RepetitionPenalty([1.5, 1.0, 0.3]),
    "n-grams": NoRepeatNgram(2),
    "n-grams of the last": NoRepeatNgram(2, include_prompt=False, window=5),
    "tokens": NoRepeatNgram(1),
    "long n-grams": NoRepeatNgram(6),
    "bias": LogitBias({1: 2.0, 3: -torch.inf}),
    "TopP off": TopP(1.0),
    "TopK off": TopK(0),
    "custom": lambda logits, history: logits - 1.0,
} | {name: entry.make(entry.example) for name, entry in CATALOGUE.items() if not entry.host_only}


@st.composite
def wide_windows(draw: st.DrawFn) -> tuple[torch.Tensor, History]:
    """Logits of a vocabulary wide enough to be narrowed, with ties and masked tokens."""
    vocab = draw(st.sampled_from((5, 200, 1031, 5000)))
    width = draw(st.integers(1, 2))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    logits = draw(st.sampled_from((0.3, 1.0, 4.0))) * torch.randn(3, width, vocab, generator=rng)
    kind = draw(st.sampled_from(("distinct", "bfloat16", "dyadic", "masked", "few", "equal", "empty", "odd")))
    if kind == "bfloat16":
        logits = logits.bfloat16().float()
    elif kind == "dyadic":
        logits = (logits.round() * math.log(2)).float()
    elif kind == "masked":
        logits[torch.rand(logits.shape, generator=rng) < 0.7] = -torch.inf
    elif kind == "few":
        logits[..., 2:-1] = -torch.inf
    elif kind == "equal":
        logits = torch.zeros_like(logits)
    elif kind == "empty":
        logits[1] = -torch.inf
    elif kind == "odd":
        logits[0, 0, 1], logits[2, 0, 3] = torch.nan, torch.inf
    ids = torch.randint(0, 7, (3, draw(st.sampled_from((1, width))), 8), generator=rng)
    length = torch.tensor([[2], [5], [6]]) + torch.arange(width)
    return logits, History(ids, length, torch.tensor([2, 3, 0]), torch.arange(3))


class TestShortCuts:
    """Choose is every stage on all of the vocabulary, then the sampler; only faster."""

    @settings(deadline=None, max_examples=examples(300))
    @given(
        wide_windows(),
        st.lists(st.sampled_from(sorted(STAGES)), max_size=4),
        st.sampled_from((Greedy(), Sample(3), lambda logits, history: logits.argmin(dim=-1))),
    )
    def test_change_nothing(
        self, window: tuple[torch.Tensor, History], names: list[str], sampler: Sampler
    ) -> None:
        """Ids and scores are those of the long way, bit for bit."""
        logits, history = window
        before = logits.clone()
        processed = logits
        for name in names:
            processed = STAGES[name](processed, history)
        expected = sampler(processed, history)
        best = processed.gather(-1, expected[..., None])[..., 0]
        expected = torch.where(best > -torch.inf, expected, -1)

        ids, scores = SamplingPipeline(Chain(STAGES[name] for name in names), sampler)(logits, history)

        assert torch.equal(expected, ids)
        torch.testing.assert_close(scores.logits, processed, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(before, logits, rtol=0, atol=0, equal_nan=True)

    def test_greedy_skips_what_keeps_the_argmax(self) -> None:
        """The last stages that keep it are not run, unless two logits are within rounding of each other."""
        seen = []

        class Spy(Composable):
            keeps_argmax = True

            def __call__(self, logits: torch.Tensor, history: History) -> torch.Tensor:
                seen.append("run")
                return logits / 2

        sample = SamplingPipeline(Spy() | PresencePenalty(0.0) | Spy(), Greedy())
        ids, scores = sample(torch.tensor([[[1.0, 2.0]]]), ONE_COLUMN)

        assert ([[1]], ["run"]) == (ids.tolist(), seen)
        assert torch.equal(torch.tensor([[[0.25, 0.5]]]), scores.logits)
        assert ["run", "run"] == seen
        assert [[0]] == sample(torch.tensor([[[2.0, 2.0]]]), ONE_COLUMN)[0].tolist()
        assert 4 == len(seen)

    @pytest.mark.parametrize("ties", ["last", "first", "keep"])
    @pytest.mark.parametrize("kind", ["peaked", "flat", "bfloat16"])
    def test_change_nothing_in_a_large_vocabulary(self, kind: str, ties: str) -> None:
        """Of 151,936 tokens the same stay as by sorting them, and the same is drawn."""
        logits = torch.randn(2, 1, 151_936, generator=torch.Generator().manual_seed(1))
        logits = logits * (0.5 if kind == "flat" else 3.0)
        logits = logits.bfloat16().float() if kind == "bfloat16" else logits
        history = History(
            torch.zeros(2, 1, 4).long(), torch.tensor([[1], [3]]), torch.ones(2), torch.arange(2)
        )
        for chain in (Chain([TopP(0.9, ties=ties)]), TopK(50) | TopP(0.9, ties=ties), Chain([MinP(0.05)])):
            ids, scores = SamplingPipeline(chain, Sample(seed=0))(logits, history)

            assert torch.equal(chain(logits, history), scores.logits)
            assert torch.equal(Sample(seed=0)(scores.logits, history), ids)


class TestRows:
    """Only the rows that are asked for are sampled."""

    @settings(deadline=None, max_examples=examples(100))
    @given(
        wide_windows(),
        st.lists(st.integers(0, 2), unique=True).map(sorted),
        st.sampled_from(
            (
                *(None, TopK(3), Temperature(0.7) | TopK(20) | TopP(0.9), Chain([TopP(0.9)])),
                Temperature([0.5, 3.0, 1.0]) | MinP(0.1),
            )
        ),
        st.sampled_from((Greedy(), Sample(3), lambda logits, history: logits.argmin(dim=-1))),
    )
    def test_are_sampled_as_among_all(
        self,
        window: tuple[torch.Tensor, History],
        rows: list[int],
        processors: Processor | None,
        sampler: Sampler,
    ) -> None:
        """With the same scores; others have no id."""
        logits, history = window
        sample = SamplingPipeline(processors, sampler)
        every, every_scores = sample(logits, history)

        ids, scores = sample(logits, history, rows)

        assert every[rows].tolist() == ids[rows].tolist()
        assert (ids[[row for row in range(3) if row not in rows]] == -1).all()
        torch.testing.assert_close(
            every_scores.logits[rows], scores.logits[rows], rtol=0, atol=0, equal_nan=True
        )


class TestWorkspace:
    """The workspace of a call is private and does not leave it."""

    LOGITS = torch.tensor([[[1.0, 5.0, 3.0, -2.0]]])

    def test_a_call_inside_a_call_disturbs_nothing(self) -> None:
        """A stage, or a sampler, that asks another chain about the logits it was given."""
        inner = SamplingPipeline(RepetitionPenalty(3.0) | Temperature(0.01), Sample(seed=0))

        def stage(logits: torch.Tensor, history: History) -> torch.Tensor:
            before = logits.clone()
            inner(logits, history)
            inner(torch.rand(1, 1, 4), history)

            assert torch.equal(before, logits)

            return logits

        def sampler(logits: torch.Tensor, history: History) -> torch.Tensor:
            return Greedy()(stage(logits, history), history)

        ids, scores = SamplingPipeline(Temperature(2.0) | stage, sampler)(self.LOGITS, ONE_COLUMN)

        assert [[1]] == ids.tolist()
        assert torch.equal(self.LOGITS / 2, scores.logits)

    def test_references_kept_by_parts_do_not_change(self) -> None:
        """Scores, and the logits that a custom stage or sampler received."""
        kept: list[torch.Tensor] = []

        def keep(logits: torch.Tensor, history: History) -> torch.Tensor:
            kept.append(logits)
            return logits

        def sample(logits: torch.Tensor, history: History) -> torch.Tensor:
            return Greedy()(keep(logits, history), history)

        for chain, sampler in (
            (Temperature(0.5) | keep, sample),
            (Chain([Temperature(0.5)]), Greedy()),
            (Chain([Temperature(0.5)]), Sample(seed=0)),
            (keep | Temperature(0.5), Greedy()),
        ):
            kept.append(SamplingPipeline(chain, sampler)(self.LOGITS, ONE_COLUMN)[1].logits)
        before = [logits.clone() for logits in kept]
        SamplingPipeline(Temperature(0.1) | RepetitionPenalty(2.0), Sample(seed=0))(-self.LOGITS, ONE_COLUMN)[
            1
        ].logits.sum()

        assert all(torch.equal(a, b) for a, b in zip(before, kept, strict=True))

    def test_views_of_it_are_not_written_into(self) -> None:
        """A stage that returns its first column for all of them, before one that works in place."""

        def first(logits: torch.Tensor, history: History) -> torch.Tensor:
            return logits[:, :1].expand_as(logits)

        logits = torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(0))
        history = History(
            torch.tensor([[[0, 1, 2, 3]]]), torch.tensor([[1, 2, 3]]), torch.tensor([0]), torch.tensor([0])
        )
        chain = Temperature(0.5) | first | NoRepeatNgram(1)

        assert torch.equal(
            chain(logits, history).argmax(dim=-1), SamplingPipeline(chain, Greedy())(logits, history)[0]
        )


class TestUnusualLogits:
    def test_that_ask_for_a_gradient(self) -> None:
        """Choosing is no matter of gradients."""
        logits = torch.tensor([[[1.0, 5.0, 3.0]]], requires_grad=True)
        chain = RepetitionPenalty(1.1) | Temperature(0.5) | NoRepeatNgram(2) | TopP(0.9)

        assert [[1]] == SamplingPipeline(chain, Greedy())(logits, ONE_COLUMN)[0].tolist()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_of_half_precision(self, dtype: torch.dtype) -> None:
        """The choice is that among the same numbers in float32."""
        logits = 3 * torch.randn(1, 1, 5000, generator=torch.Generator().manual_seed(0)).to(dtype)
        sample = SamplingPipeline(Temperature(0.7) | TopK(40) | TopP(0.9), Sample(2))

        assert torch.equal(sample(logits.float(), ONE_COLUMN)[0], sample(logits, ONE_COLUMN)[0])

    def test_with_nan_in_the_odd_ones_at_the_end(self) -> None:
        """Which no block of a top-k holds."""
        logits = torch.randn(1, 1, 5000, generator=torch.Generator().manual_seed(0))
        logits[0, 0, 4995] = torch.nan

        assert [[-1]] == SamplingPipeline(TopK(3) | Temperature(0.9), Greedy())(logits, ONE_COLUMN)[
            0
        ].tolist()

    def test_that_a_penalty_makes_infinite(self) -> None:
        """An overflow is no warning, and a neutral penalty leaves infinity alone."""
        huge = torch.full((1, 1, 4), -1e30)
        infinite = torch.tensor([[[torch.inf, 1.0, 2.0]]])
        off = Chain([RepetitionPenalty(1.0, shift_safe=True)])

        assert [[1]] == SamplingPipeline(Chain([RepetitionPenalty(1e10)]), Greedy())(huge, ONE_COLUMN)[
            0
        ].tolist()
        assert [[0]] == SamplingPipeline(off, Greedy())(infinite, ONE_COLUMN)[0].tolist()
