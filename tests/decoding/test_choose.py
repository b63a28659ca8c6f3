"""Chain and selection as one."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decodekit.decoding import Choose, Generator, Greedy, History, MaxNewTokens, Sample, Selection, StopTokens
from decodekit.processors import (
    Chain,
    Composable,
    LogitBias,
    MinP,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
)
from decodekit.testing import ScriptedDecoder, last_token

from ..processors.test_catalogue import CATALOGUE

HISTORY = History(torch.zeros(1, 1, 4).long(), torch.tensor([[1, 2]]), torch.tensor([1]), torch.tensor([0]))
ONE_COLUMN = History(HISTORY.ids, HISTORY.length[:, :1], HISTORY.prompt, HISTORY.stream)


class TestChoose:
    def test_gives_the_processed_scores(self) -> None:
        """The scores are what the selection saw."""
        logits = torch.tensor([[[1.0, 2.0], [4.0, 2.0]]])
        ids, scores = Choose(Temperature(2.0), Greedy())(logits, HISTORY)

        assert [[1, 0]] == ids.tolist()
        assert torch.equal(logits / 2, scores.logits)

    def test_no_token_left_is_no_choice(self) -> None:
        """A column without a token, or of garbage, gives -1 and leaves its neighbour alone."""
        for selection in (Greedy(), Sample()):
            for nothing in (-torch.inf, torch.nan):
                logits = torch.tensor([[[nothing, nothing], [0.0, -torch.inf]]])

                assert [[-1, 0]] == Choose(None, selection)(logits, HISTORY)[0].tolist()

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
        assert result.endings[0] is not None
        assert ("no_token_left", repr(SuppressTokens([1]))) == (
            result.endings[0].reason,
            result.endings[0].matched,
        )

    def test_the_stage_is_found_under_parameters_of_rows(self) -> None:
        """A chain with one value a row is asked about the batch, and names NaN as what it is."""

        def broken(logits: torch.Tensor, history: History) -> torch.Tensor:
            return torch.cat([logits[..., :1] * torch.nan, logits[..., 1:]], dim=-1)

        decoder = ScriptedDecoder(torch.zeros(1, 3), batch_size=2)
        empty = Generator(decoder, processors=Temperature([0.5, 1.0]) | SuppressTokens([0, 1, 2]))([[1], [2]])
        garbage = Generator(decoder, processors=Temperature([0.5, 1.0]) | broken)([[1], [2]])

        assert [repr(SuppressTokens([0, 1, 2]))] * 2 == [e.matched for e in empty.endings if e]
        assert [f"{broken!r}, which gave NaN"] * 2 == [e.matched for e in garbage.endings if e]

    def test_the_prompt_is_not_taken_for_a_choice(self) -> None:
        """When no token was left, a stop that the prompt's last token would meet does not fire."""
        decoder = ScriptedDecoder(torch.full((1, 3), -torch.inf))
        result = Generator(decoder, stop=StopTokens([2]))([1, 2])

        assert [[]] == result.ids
        assert result.endings[0] is not None
        assert ("no_token_left", "the decoder") == (result.endings[0].reason, result.endings[0].matched)

    def test_a_decoder_without_tokens_is_named_too(self) -> None:
        """When the raw logits are empty already, no stage is blamed."""
        logits = torch.full((1, 1, 2), -torch.inf)

        assert "the decoder" == Choose(Chain(), Greedy()).emptied_by(logits, HISTORY, 0, 0)


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
    "nobody's": lambda logits, history: logits - 1.0,
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
    """Choose is every stage on all of the vocabulary, then the selection; only faster."""

    @settings(deadline=None, max_examples=300)
    @given(
        wide_windows(),
        st.lists(st.sampled_from(sorted(STAGES)), max_size=4),
        st.sampled_from((Greedy(), Sample(3), lambda logits, history: logits.argmin(dim=-1))),
    )
    def test_change_nothing(
        self, window: tuple[torch.Tensor, History], names: list[str], selection: Selection
    ) -> None:
        """Ids and scores are those of the long way, bit for bit."""
        logits, history = window
        before = logits.clone()
        processed = logits
        for name in names:
            processed = STAGES[name](processed, history)
        expected = selection(processed, history)
        best = processed.gather(-1, expected[..., None])[..., 0]
        expected = torch.where(best > -torch.inf, expected, -1)

        ids, scores = Choose(Chain(STAGES[name] for name in names), selection)(logits, history)

        assert torch.equal(expected, ids)
        torch.testing.assert_close(scores.logits, processed, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(before, logits, rtol=0, atol=0, equal_nan=True)

    def test_are_taken(self) -> None:
        """After a top-k, a local stage and a selection see the survivors alone; others see all."""
        seen = []

        class Spy(Composable):
            local = True

            def __call__(self, logits: torch.Tensor, history: History) -> torch.Tensor:
                seen.append(logits.shape[-1])
                return logits

        logits = torch.randn(1, 1, 5000, generator=torch.Generator().manual_seed(0))
        Choose(Spy() | TopK(7) | Spy() | PresencePenalty(1.0) | Spy(), Sample())(logits, ONE_COLUMN)

        assert [5000, 7, 5000] == seen

    def test_greedy_skips_what_keeps_the_argmax(self) -> None:
        """The last stages that keep it are not run, unless two logits are within rounding of each other."""
        seen = []

        class Spy(Composable):
            keeps_argmax = True

            def __call__(self, logits: torch.Tensor, history: History) -> torch.Tensor:
                seen.append("run")
                return logits / 2

        choose = Choose(Spy() | PresencePenalty(0.0) | Spy(), Greedy())
        ids, scores = choose(torch.tensor([[[1.0, 2.0]]]), ONE_COLUMN)

        assert ([[1]], ["run"]) == (ids.tolist(), seen)
        assert torch.equal(torch.tensor([[[0.25, 0.5]]]), scores.logits)
        assert ["run", "run"] == seen
        assert [[0]] == choose(torch.tensor([[[2.0, 2.0]]]), ONE_COLUMN)[0].tolist()
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
            ids, scores = Choose(chain, Sample())(logits, history)

            assert torch.equal(chain(logits, history), scores.logits)
            assert torch.equal(Sample()(scores.logits, history), ids)
