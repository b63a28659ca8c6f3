"""Properties of every stop condition."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList
from transformers.generation.stopping_criteria import ConfidenceCriteria

from decodekit.decoding import (
    Consecutive,
    Draft,
    EndOfSequence,
    Generator,
    HighEntropy,
    History,
    LowConfidence,
    LowEntropy,
    MaxLength,
    MaxNewTokens,
    MaxTime,
    NotBefore,
    RepetitionLoop,
    Sample,
    StopSequences,
    StopStrings,
    StopTokens,
    StopWhen,
    stop_from_transformers,
)
from decodekit.decoding.protocols import SamplesTokens, StopCondition
from decodekit.decoding.scores import Scores
from decodekit.decoding.stopping.composition import begin
from decodekit.processors import Temperature
from decodekit.speculation import DraftModel, DraftTree, SpeculativeGenerator, Tree
from decodekit.testing import ScriptedDecoder

from ...strategies import examples, windows
from .test_stop_strings import Pieces

prop = settings(deadline=None, max_examples=examples(40))


def two_alike(history: History) -> Tensor:
    """Rows whose two newest tokens are the same, prompt or not."""
    rows = [history.before(row, 0).tolist()[-2:] for row in range(len(history.length))]
    return torch.tensor([len(row) == 2 and row[0] == row[1] for row in rows])


def even_sum(ids: Tensor, scores: Any, **options: Any) -> Tensor:
    """As Hugging Face's examples have it."""
    return (ids.sum(dim=-1) % 5 == 0) & (ids.shape[1] > 2)


CRITERIA = StoppingCriteriaList([EosTokenCriteria([1, 3]), even_sum, MaxLengthCriteria(9)])

# They are asked about tokens below 8: the pieces of a tokenizer.
CONDITIONS: dict[str, Callable[[], StopCondition]] = {
    "max-new-tokens": lambda: MaxNewTokens(3),
    "max-length": lambda: MaxLength(6),
    "tokens": lambda: StopTokens([1, 3], hide=True),
    "end-of-sequence": lambda: EndOfSequence(0),
    "strings": lambda: StopStrings(["ab", "bba", "c"], Pieces()),
    "sequences": lambda: StopSequences([[1, 0], [0], [2, 0, 0], [3, 2, 1, 2]], hide=True),
    "max-time": lambda: MaxTime(1e9),
    "max-time-from-the-first-token": lambda: MaxTime(1e9, since="first_token"),
    "low-confidence": lambda: LowConfidence(0.2),
    "high-entropy": lambda: HighEntropy(1.2),
    "low-entropy": lambda: LowEntropy(0.8),
    "repetition-loop": lambda: RepetitionLoop(3, repeats=2),
    "function": lambda: StopWhen(two_alike),
    "transformers": lambda: stop_from_transformers(CRITERIA),
    "transformers-with-scores": lambda: stop_from_transformers(ConfidenceCriteria(0.2), scores=True),
    "not-before": lambda: NotBefore(3, StopTokens([0, 2]) | StopStrings("ab", Pieces())),
    "any": lambda: StopStrings("ab", Pieces()) | StopSequences([1, 0], hide=True) | LowConfidence(0.1),
    "all": lambda: StopSequences([[2], [0]]) & NotBefore(2, StopWhen(two_alike)) & HighEntropy(0.5),
}
# These ask about what came before, and so have to be shown it.
IN_ORDER: dict[str, Callable[[], StopCondition]] = {
    "consecutive": lambda: Consecutive(2, HighEntropy(1.0)),
    "consecutive-any": lambda: Consecutive(2, StopTokens([0, 1]) | LowConfidence(0.4)),
}

every = pytest.mark.parametrize("make", CONDITIONS.values(), ids=CONDITIONS.keys())
every_one = pytest.mark.parametrize(
    "make", [*CONDITIONS.values(), *IN_ORDER.values()], ids=[*CONDITIONS.keys(), *IN_ORDER.keys()]
)


def tidy(logits: Tensor, history: History) -> tuple[Tensor, History]:
    """The window, a token at least before each column, with tokens that the tokenizer has."""
    length = history.length + 1
    ids = torch.nn.functional.pad(history.ids, (1, 0))
    inside = torch.arange(ids.shape[-1]) < length.amax(dim=1)[:, None, None]
    return logits, History(torch.where(inside, ids % 8, ids), length, history.prompt, history.random_stream)


def ask(condition: StopCondition, logits: Tensor, history: History) -> list[list[int]]:
    """The codes."""
    return condition(Scores(lambda: logits), history).tolist()


def column_of(history: History, column: int, garbage: int) -> History:
    """One column with its own path, *garbage* beyond its length."""
    path = column if history.ids.shape[1] > 1 else 0
    length = history.length[:, column : column + 1]
    behind = torch.arange(history.ids.shape[-1]) >= length[:, None]
    ids = history.ids[:, path : path + 1].masked_fill(behind, garbage)
    return History(ids, length, history.prompt, history.random_stream)


class TestAnyWindow:
    """Decoding token by token, verification and trees."""

    @every
    @prop
    @given(window=windows(dtype=torch.float32, vocab=8), garbage=st.sampled_from((-1, 0, 7, 10**12)))
    def test_equals_its_columns_alone(
        self, make: Callable[[], StopCondition], window: tuple[Tensor, History], garbage: int
    ) -> None:
        """A column's code is a function of its own tokens and scores, whatever lies beyond them."""
        logits, history = tidy(*window)
        codes = ask(make(), logits, history)
        for i in range(logits.shape[1]):
            column = ask(begin(make()), logits[:, i : i + 1], column_of(history, i, garbage))

            assert column == [row[i : i + 1] for row in codes]

    @every
    @prop
    @given(window=windows(dtype=torch.float32, vocab=8))
    def test_a_batch_equals_its_rows(
        self, make: Callable[[], StopCondition], window: tuple[Tensor, History]
    ) -> None:
        """Neighbours change nothing."""
        logits, history = tidy(*window)
        rows = [ask(make(), logits[i : i + 1], history.rows(slice(i, i + 1)))[0] for i in range(len(logits))]

        assert rows == ask(make(), logits, history)

    @every
    @prop
    @given(first=windows(torch.float32, vocab=8), second=windows(torch.float32, vocab=8))
    def test_remembers_nothing_wrong(
        self, make: Callable[[], StopCondition], first: tuple[Tensor, History], second: tuple[Tensor, History]
    ) -> None:
        """After calls with other texts, longer or shorter, a condition gives what a fresh one gives."""
        used = begin(make())
        for window in (first, second, first):
            logits, history = tidy(*window)

            assert ask(make(), logits, history) == ask(used, logits, history)

    @every_one
    def test_gives_codes_of_its_finishes(self, make: Callable[[], StopCondition]) -> None:
        """As many as there are, int64, of the shape of the window; none is written into the history."""
        codes = set()
        for seed in range(40):
            rng = torch.Generator().manual_seed(seed)
            ids = torch.randint(8, (2, 1, 12), generator=rng)
            history = History(
                ids.clone(), torch.tensor([[4, 5, 6], [5, 6, 6]]), torch.tensor([2, 3]), ids[:, 0, 0]
            )
            logits = 2 * torch.randn(2, 3, 8, generator=rng)
            result = make()(Scores(lambda logits=logits: logits), history)
            codes |= set(result.flatten().tolist())

            assert ((2, 3), torch.int64) == (tuple(result.shape), result.dtype)
            assert torch.equal(ids, history.ids)

        assert codes <= set(range(len(make().finishes) + 1))
        assert len(codes) > 1 or isinstance(make(), MaxTime)


VOCAB = 8
SHAPE: dict[str, Any] = {"max_length": 48, "widths": (1, 5, 16), "scored_width": 5, "tree_widths": (16,)}


def scripted(seed: int, off: float = 0.0) -> ScriptedDecoder:
    """A decoder, or with *off* a draft that agrees with it now and then."""
    table = 1.5 * torch.randn(23, VOCAB, generator=torch.Generator().manual_seed(seed))
    table += off * torch.randn(23, VOCAB, generator=torch.Generator().manual_seed(seed + 1))
    return ScriptedDecoder(table, 3, **SHAPE)


class Garbage:
    """Draft tokens that are sometimes right."""

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """By the length alone."""
        return Draft((history.length * 7 + torch.arange(4) * 5) % VOCAB)


class TestGenerating:
    """In a generator."""

    @pytest.mark.mostly_slow(every=8)
    @every_one
    @pytest.mark.parametrize("seed", range(4))
    def test_speculation_changes_nothing(self, make: Callable[[], StopCondition], seed: int) -> None:
        """Ids, text and finishes are those of plain decoding, and a row's are those of it alone."""
        dice = random.Random(seed)
        parts: dict[str, Any] = {
            "processors": Temperature(0.5 + 0.2 * (seed % 3)),
            "sampler": Sample(seed),
            "stop": make() | MaxNewTokens(25),
            "tokenizer": Pieces(),
        }
        prompts = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 9))] for _ in range(3)]
        plain = Generator(scripted(seed), **parts)
        expected = plain(prompts)
        for drafter in (
            DraftModel(scripted(seed, 0.4)),
            Garbage(),
            DraftTree(scripted(seed, 0.4), Tree.of_children(2, 2, 1)),
        ):
            fast = SpeculativeGenerator(scripted(seed), drafter, **parts)
            # The second time the condition has run before.
            for _ in range(2):
                actual = fast(prompts)

                assert (expected.ids, expected.text) == (actual.ids, actual.text)
                assert expected.finishes == actual.finishes
        for row, prompt in enumerate(prompts):
            alone = plain(prompt, random_streams=[row])

            assert (expected.ids[row], expected.finishes[row]) == (alone.ids[0], alone.finishes[0])

    @every_one
    def test_runs_that_take_turns_do_not_meet(self, make: Callable[[], StopCondition]) -> None:
        """Each run has what it remembers for itself, though all have one condition."""
        generator = Generator(scripted(1), stop=make() | MaxNewTokens(12), sampler=Sample(3))
        prompts = [[[1, 2, 3], [4]], [[0, 5], [1, 1, 1, 1, 6]]]
        expected = [list(generator.stream(p)) for p in prompts]
        random_streams = [generator.stream(p) for p in prompts]
        actual: list[list[Any]] = [[], []]
        while random_streams != [None, None]:
            for i, stream in enumerate(random_streams):
                event = None if stream is None else next(stream, None)
                if event is None:
                    random_streams[i] = None  # type: ignore[call-overload]
                else:
                    actual[i].append(event)

        assert expected == actual
