"""Grammar-constrained tokens, independent of the engine."""

import copy
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.decoding import (
    Draft,
    EndOfSequence,
    Generator,
    Greedy,
    History,
    MaxNewTokens,
    Sample,
)
from decodekit.decoding.protocols import Drafter, SamplesTokens
from decodekit.processors import Grammar, Language, Temperature, TopK, regex
from decodekit.processors.grammar import grammar
from decodekit.speculation import DraftModel, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder

from ..by_hand import after, kept, run
from .languages import END, BracketMatcher, Brackets, Case, cases, tokenizer

OPEN, CLOSE, PAIR = 0, 1, 2
EVEN = [0.2] * 5
ELSEWHERE = Brackets(1, eos=(4,))

CASES = sorted(cases())
every = pytest.mark.parametrize("case", [cases()[name] for name in CASES], ids=CASES)


def history(rows: Sequence[Sequence[int]]) -> History:
    """One column after each row of generated ids; no prompts."""
    ids = torch.full((len(rows), 1, max(map(len, rows)) + 1), -1)
    for row, text in enumerate(rows):
        ids[row, 0, : len(text)] = torch.tensor(text)
    length = torch.tensor([[len(text)] for text in rows])
    return History(ids, length, torch.zeros(len(rows)).long(), torch.zeros(len(rows)).long())


def allowed(processor: Grammar, text: Sequence[int], vocab: int) -> list[int]:
    """The tokens that may follow *text*."""
    return kept(processor, [1 / vocab] * vocab, after(list(text)))


class TestBrackets:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            # At most two pairs. Token 4 is no bracket.
            pytest.param([], [OPEN, PAIR], id="cannot-begin-with-the-end"),
            pytest.param([OPEN], [OPEN, CLOSE, PAIR], id="cannot-end-while-open"),
            pytest.param([OPEN, OPEN], [CLOSE], id="forced"),
            pytest.param([PAIR], [OPEN, PAIR, END], id="may-end-and-may-go-on"),
            pytest.param([PAIR, OPEN, CLOSE], [END], id="must-end"),
            pytest.param([PAIR, END], [END], id="after-the-end-only-ends"),
            pytest.param([PAIR, END, OPEN], [END], id="what-follows-an-end-is-no-text"),
            pytest.param([CLOSE], [], id="refused"),
            pytest.param([PAIR, 4, PAIR], [], id="no-bracket"),
            pytest.param([PAIR, -1], [], id="no-token"),
            pytest.param([OPEN, END], [], id="ended-while-open"),
            pytest.param([OPEN, END, CLOSE], [], id="closed-after-the-end"),
        ],
    )
    def test_allows_what_may_follow(self, text: list[int], expected: list[int]) -> None:
        """And the end where the text may end."""
        assert expected == kept(Grammar(Brackets(2)), EVEN, after(text))

    def test_the_prompt_does_not_count(self) -> None:
        """A closing bracket in the prompt closes nothing."""
        history = after([CLOSE, OPEN, OPEN], prompt=2)

        assert [OPEN, CLOSE, PAIR] == kept(Grammar(Brackets(2)), EVEN, history)

    def test_leaves_the_allowed_logits_as_they_are(self) -> None:
        """A mask, and nothing but."""
        inf = torch.inf

        assert [-2.0, -inf, 7.5, -inf] == run(Grammar(Brackets(2)), [-2.0, 3.0, 7.5, 9.0])

    def test_a_vocabulary_narrower_than_the_tokenizer(self) -> None:
        """Tokens without a logit are ignored."""
        assert [OPEN] == kept(Grammar(Brackets(2, eos=(CLOSE,))), [0.5, 0.5])

    def test_several_ends(self) -> None:
        """All of them, or none."""
        processor = Grammar(Brackets(1, eos=(3, 4)))

        assert [3, 4] == kept(processor, EVEN, after([PAIR]))
        assert [3, 4] == kept(processor, EVEN, after([PAIR, 4]))
        assert [OPEN, PAIR] == kept(processor, EVEN)

    def test_no_ends(self) -> None:
        """A text that cannot go on then leaves no token."""
        processor = Grammar(Brackets(1, eos=()))

        assert [CLOSE] == kept(processor, EVEN, after([OPEN]))
        assert [] == kept(processor, EVEN, after([PAIR]))

    def test_a_token_of_the_grammar_that_is_an_end(self) -> None:
        """It ends: no text holds it."""
        processor = Grammar(Brackets(2, eos=(PAIR,)))

        assert [OPEN] == kept(processor, EVEN)
        assert [OPEN, PAIR] == kept(processor, EVEN, after([OPEN, CLOSE]))

    def test_rows_of_different_languages(self) -> None:
        """A row without one comes out as it went in."""
        processor = Grammar([Brackets(2), None, ELSEWHERE])
        logits = torch.randn(3, 1, 5)

        processed = processor(logits, history([[OPEN, OPEN], [4, 4, 4], [PAIR]]))

        masks = [[CLOSE], [0, 1, 2, 3, 4], [4]]
        assert masks == [row.isfinite().nonzero()[:, 0].tolist() for row in processed[:, 0]]
        assert torch.equal(logits[1], processed[1])

    def test_rows_without_a_language_cost_nothing(self) -> None:
        """None is the identity."""
        logits = torch.randn(2, 1, 5)

        assert Grammar([None, None])(logits, history([[4], [4]])) is logits


class TestForced:
    @every
    def test_is_what_the_masks_leave_alone(self, case: Case) -> None:
        """Token by token as long as one is allowed, up to an end, along texts of the language."""
        dice, processor, text, found = random.Random(5), Grammar(case.language), [], 0
        for _ in range(60):
            expected: list[int] = []
            while len(expected) < 3 and len(kept := allowed(processor, text + expected, case.vocab)) == 1:
                expected += kept
                if kept[0] in case.language.eos:
                    break
            found += len(expected)

            assert [expected] == processor.forced(history([text]), torch.tensor([3]))
            candidates = allowed(processor, text, case.vocab)
            text = [] if candidates == list(case.language.eos) else [*text, dice.choice(candidates)]
        assert found > 0

    def test_shares_its_matchers_with_the_masks(self) -> None:
        """What was walked for the one is not walked again for the other."""
        language = Counting(3)
        processor = Grammar(language)
        text = [OPEN, OPEN, OPEN]
        for n in range(4):
            processor.forced(history([text[:n]]), torch.tensor([4]))
            processor(torch.zeros(1, 1, 5), history([text[:n]]))

        # Three tokens advanced, and three forced after them, which the mask rewinds.
        assert {"matcher": 1, "mask": 8, "advance": 6, "rewind": 3} == language.counts

    def test_rows_of_which_none_are_wanted(self) -> None:
        """Their matchers are not used."""
        language = Counting(3)

        assert [[], []] == Grammar([language, None]).forced(history([[4], [4]]), torch.tensor([0, 4]))
        assert {} == language.counts


class TestRefuses:
    @pytest.mark.parametrize("language", ["()", 3, {"type": "object"}, Brackets, [Brackets(1), "()"]])
    def test_what_is_no_language(self, language: object) -> None:
        """A schema or a class is a likely mistake."""
        with pytest.raises(TypeError, match=r"'language' must be a language .*: got "):
            Grammar(language)  # type: ignore[arg-type]

    def test_no_rows(self) -> None:
        """An empty list is for no batch at all."""
        with pytest.raises(ValueError, match="'language' must be one per row: got none"):
            Grammar([])

    def test_another_batch(self) -> None:
        """The message says how many languages there are and how many rows."""
        with pytest.raises(ValueError, match="one value per row: got 2 for 1 rows"):
            Grammar([None, None])(torch.zeros(1, 1, 5), after([]))

    def test_an_end_without_a_logit(self) -> None:
        """A text that could never end."""
        with pytest.raises(ValueError, match="token ids must be < 4, the size of the vocabulary: got 4"):
            Grammar(ELSEWHERE)(torch.zeros(1, 1, 4), after([]))


@attrs.define(eq=False)
class Counting(Brackets):
    """Counts what its matchers are asked."""

    counts: Counter[str] = attrs.field(factory=Counter)

    def matcher(self) -> BracketMatcher:
        self.counts["matcher"] += 1
        return CountingMatcher(self.pairs, counts=self.counts)


@attrs.define(eq=False)
class CountingMatcher(BracketMatcher):
    """Counts what it is asked."""

    counts: Counter[str] = attrs.field(factory=Counter, kw_only=True)

    def mask(self) -> Tensor:
        self.counts["mask"] += 1
        return super().mask()

    def advance(self, ids: Sequence[int]) -> int:
        self.counts["advance"] += len(ids)
        return super().advance(ids)

    def rewind(self, n: int) -> None:
        self.counts["rewind"] += n
        super().rewind(n)


@attrs.frozen(eq=False)
class Failing(Brackets):
    """An engine that breaks at the second token."""

    def matcher(self) -> BracketMatcher:
        return FailingMatcher(self.pairs)


@attrs.define(eq=False)
class FailingMatcher(BracketMatcher):
    def mask(self) -> Tensor:
        if len(self.states) == 2:
            raise RuntimeError("broken")
        return super().mask()


class TestMatchersAreACache:
    @every
    def test_whatever_was_computed_before(self, case: Case) -> None:
        """Texts that grow, shrink, fork and fail, in any order, give what they give a new processor."""
        dice = random.Random(7)
        processor, texts = Grammar(case.language), [[]]
        for _ in range(150):
            text = list(dice.choice(texts))
            if dice.random() < 0.3:
                text = text[: dice.randint(0, len(text))]
            if dice.random() < 0.2:
                text.append(dice.randrange(-1, case.vocab))
            expected = allowed(Grammar(case.language), text, case.vocab)

            assert expected == allowed(processor, text, case.vocab)
            assert expected == allowed(processor, text, case.vocab)
            if expected:
                texts.append([*text, dice.choice(expected)])

    @every
    def test_a_window_is_its_columns_one_at_a_time(self, case: Case) -> None:
        """Also after a wrong draft token, and on several paths."""
        dice = random.Random(11)
        text: list[int] = []
        while candidates := allowed(Grammar(case.language), text, case.vocab):
            if len(text) > 12:
                break
            text.append(dice.choice(candidates))
        for wrong in range(len(text)):
            drafted = list(text)
            drafted[wrong] = dice.randrange(case.vocab)
            paths = [drafted, text, drafted, text]
            length = torch.tensor([[wrong, wrong + 1, len(text), len(text) - 1]])
            window = History(torch.tensor([paths]), length, torch.tensor([0]), torch.tensor([0]))
            line = attrs.evolve(window, ids=torch.tensor([[drafted]]))
            logits = torch.randn(1, 4, case.vocab)

            for each in (window, line):
                together = Grammar(case.language)(logits, each)
                for column, path in enumerate(paths):
                    own = drafted if each is line else path
                    one = after(own[: int(length[0, column])])
                    alone = Grammar(case.language)(logits[:, column : column + 1], one)

                    assert torch.equal(alone, together[:, column : column + 1])

    def test_a_step_advances_by_a_token(self) -> None:
        """One matcher per row, one mask and one token per step; only rejected draft tokens are rewound."""
        language = Counting(9)
        processor = Grammar(language)
        texts = [[OPEN] * 6 + [CLOSE] * 6, [OPEN, CLOSE] * 6]
        for n in range(12):
            rows = [text[:n] for text in texts]
            for _ in range(2):
                processor(torch.zeros(2, 1, 5), history(rows))

        assert {"matcher": 2, "mask": 24, "advance": 22} == language.counts

    @pytest.mark.parametrize("width", [2, 8])
    def test_a_draft_token_is_refused_once(self, width: int) -> None:
        """The columns after it, and another call, ask the engine for nothing more."""
        language = Counting(9)
        processor = Grammar(language)
        drafted = torch.tensor([[[OPEN, OPEN, 4, *[CLOSE] * 7]]])
        window = attrs.evolve(history([[]]), ids=drafted, length=torch.arange(2, 2 + width)[None])
        for _ in range(2):
            masked = processor(torch.zeros(1, width, 5), window)

        assert {"matcher": 1, "mask": 1, "advance": 2 + 1} == language.counts
        assert masked[0, 1:].isneginf().all()
        assert [OPEN, CLOSE, PAIR] == allowed(processor, [OPEN, OPEN], 5)

    def test_refusals_are_of_their_own_place(self) -> None:
        """A token that was refused may follow another text."""
        processor = Grammar(Brackets(2))

        assert [] == allowed(processor, [CLOSE], 5)
        assert [OPEN, CLOSE, PAIR] == allowed(processor, [OPEN], 5)
        assert [OPEN, PAIR, END] == allowed(processor, [OPEN, CLOSE], 5)
        assert [] == allowed(processor, [OPEN, CLOSE, CLOSE], 5)
        assert [] == allowed(processor, [CLOSE], 5)

    def test_texts_that_take_turns_do_not_rob_each_other(self) -> None:
        """Two loops over one processor, whose texts begin alike, soon have a matcher each."""
        language = Counting(30)
        processor = Grammar(language)
        texts = [[OPEN] * 3 + [PAIR] * 20, [OPEN] * 3 + [OPEN, CLOSE] * 20]
        for n in range(20):
            if n == 10:
                language.counts.clear()
            for text in texts:
                processor(torch.zeros(1, 1, 5), after(text[:n]))

        assert {"mask": 20, "advance": 20} == language.counts

    def test_languages_keep_apart(self) -> None:
        """A matcher that stands where a text leads is of no use to a row of another language."""
        processor = Grammar([Brackets(1), Brackets(3)])
        processor(torch.zeros(2, 1, 5), history([[], [OPEN, OPEN]]))

        processed = processor(torch.zeros(2, 1, 5), history([[OPEN, OPEN], []]))

        masks = [row.isfinite().nonzero()[:, 0].tolist() for row in processed[:, 0]]
        assert [[], [OPEN, PAIR]] == masks

    @pytest.mark.parametrize("closer", [0, 1])
    def test_a_leap_is_made_from_the_closest(self, closer: int) -> None:
        """Several tokens at once, as a path of a tree adds: what was walked is not walked again."""
        language = Counting(30)
        processor = Grammar(language)
        texts = [[OPEN] * 10, [OPEN, CLOSE] * 5]
        processor(torch.zeros(2, 1, 5), history(texts))
        language.counts.clear()

        processor(torch.zeros(1, 1, 5), after([*texts[closer], PAIR, PAIR, PAIR]))

        assert {"mask": 1, "advance": 3} == language.counts

    def test_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """More rows than are kept give the same, more slowly."""
        monkeypatch.setattr(grammar, "_MOST_IDLE", 2)
        language = Counting(9)
        processor = Grammar(language)
        texts = [[OPEN] * n + [CLOSE] for n in range(1, 6)]
        logits = torch.zeros(5, 1, 5)

        expected = Grammar(Brackets(9))(logits, history(texts))

        for _ in range(3):
            assert torch.equal(expected, processor(logits, history(texts)))
        assert 2 == len(processor._idle._walks)
        assert 5 + 3 + 3 == language.counts["matcher"]

    def test_does_not_keep_the_callers_history(self) -> None:
        """The loop writes into the tensor that it has shown."""
        processor, now = Grammar(Brackets(3)), after([OPEN, OPEN])
        processor(torch.zeros(1, 1, 5), now)
        now.ids[0, 0, 1] = CLOSE

        assert [OPEN, PAIR, END] == kept(processor, EVEN, now)

    def test_a_failing_engine_poisons_nothing(self) -> None:
        """The error is the engine's own, and the next call starts anew."""
        processor = Grammar(Failing(2))
        assert [OPEN, PAIR] == kept(processor, EVEN)

        with pytest.raises(RuntimeError, match="broken"):
            kept(processor, EVEN, after([OPEN]))

        assert [OPEN, PAIR] == kept(processor, EVEN)
        assert [CLOSE] == kept(processor, EVEN, after([OPEN, OPEN]))

    @every
    def test_threads_may_share_it(self, case: Case) -> None:
        """Each gets what it would get alone."""
        processor = Grammar(case.language)

        def walk(seed: int) -> list[list[int]]:
            dice, text, seen = random.Random(seed), [], []
            while (candidates := allowed(processor, text, case.vocab)) and len(text) < 15:
                seen.append(candidates)
                text.append(dice.choice(candidates))
            return seen

        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(walk, range(12)))

        assert list(map(walk, range(12))) == together

    @every
    def test_a_copy_starts_with_none(self, case: Case) -> None:
        """The cache is not copied."""
        processor = Grammar(case.language)
        first = allowed(processor, [], case.vocab)

        assert first == allowed(copy.deepcopy(processor), [], case.vocab)


@attrs.frozen(eq=False)
class NoisyDrafter:
    """The tokens of *drafter*, some replaced by random ones."""

    drafter: Drafter
    vocab: int

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        ids = self.drafter.propose(history, budget, sample).ids
        rng = torch.Generator().manual_seed(int(history.length.sum()))
        wrong = torch.rand(ids.shape, generator=rng) < 0.3
        return Draft(torch.where(wrong, torch.randint(self.vocab, ids.shape, generator=rng), ids))


MAX_LENGTH = 96
SCRIPT = {"max_length": MAX_LENGTH, "widths": (1, 5, 16), "scored_width": 5}


def table(vocab: int, seed: int) -> Tensor:
    return 2 * torch.randn(61, vocab, generator=torch.Generator().manual_seed(seed))


def texts(generator: Generator, prompts: list[list[int]], random_streams: list[int]) -> Iterator[list[int]]:
    """What is generated, the end left out; every row has to have ended by itself."""
    result = generator(prompts, random_streams)
    for ids, finish in zip(result.ids, result.finishes, strict=True):
        assert finish is not None
        assert "end_of_sequence" == finish.reason
        yield ids[:-1]


class TestGeneration:
    @pytest.mark.mostly_slow(every=4)
    @every
    @pytest.mark.parametrize("seed", range(12))
    def test_is_always_a_text(self, case: Case, seed: int) -> None:
        """Random logits, plain and under speculation: the same texts, each of the language."""
        sampler = Greedy() if seed == 0 else Sample(seed)
        scores = table(case.vocab, seed)
        processors = Grammar(case.language) | Temperature(0.5 + 0.2 * seed) | TopK(20)
        parts = {
            "processors": processors if seed % 2 else TopK(case.vocab) | Grammar(case.language),
            "sampler": sampler,
            "stop": EndOfSequence(case.language.eos),
        }
        prompts, random_streams = [[1, 2], [2], [1, 2, 3, 1]], [5, 6, 7]

        plain = Generator(ScriptedDecoder(scores, 3, **SCRIPT), **parts)
        model = DraftModel(ScriptedDecoder(scores, 3, **SCRIPT))
        fast = SpeculativeGenerator(
            ScriptedDecoder(scores, 3, **SCRIPT), NoisyDrafter(model, case.vocab), num_draft_tokens=4, **parts
        )
        expected = list(texts(plain, prompts, random_streams))

        assert all(case.holds(ids) for ids in expected)
        assert expected == list(texts(fast, prompts, random_streams))
        for row, prompt in enumerate(prompts):
            single = Generator(ScriptedDecoder(scores, 1, **SCRIPT), **parts)

            assert [expected[row]] == list(texts(single, [prompt], random_streams[row : row + 1]))

    @pytest.mark.parametrize("seed", range(6))
    def test_rows_of_different_grammars(self, seed: int) -> None:
        """Each row's text is of its own language, and what it is alone; a free row is free."""
        rows = [cases()["json"], None, cases()["regex"], cases()["lark"]]
        vocab = cases()["json"].vocab
        languages: list[Language | None] = [row and row.language for row in rows]
        scores = table(vocab, seed)
        stop = EndOfSequence(tokenizer().eos_token_id) | MaxNewTokens(60)
        prompts, random_streams = [[1, 2], [2], [1, 2, 3], [5]], [0, 1, 2, 3]
        parts = {"sampler": Sample(seed), "stop": stop}

        plain = Generator(ScriptedDecoder(scores, 4, **SCRIPT), processors=Grammar(languages), **parts)
        model = DraftModel(ScriptedDecoder(scores, 4, **SCRIPT))
        fast = attrs.evolve(plain, drafter=NoisyDrafter(model, vocab))
        expected = plain(prompts, random_streams).ids

        assert expected == fast(prompts, random_streams).ids
        for row, case in enumerate(rows):
            assert case is None or case.holds(expected[row][:-1])
            alone = Generator(
                ScriptedDecoder(scores, 1, **SCRIPT), processors=Grammar([languages[row]]), **parts
            )

            assert [expected[row]] == alone([prompts[row]], [random_streams[row]]).ids

    def test_a_text_that_cannot_go_on_ends(self) -> None:
        """Greedy decoding that would never end by itself is made to."""
        language = regex("true|false", tokenizer())
        scores = torch.zeros(1, len(tokenizer()))
        scores[0, tokenizer().eos_token_id] = -100.0
        generator = Generator(
            ScriptedDecoder(scores, **SCRIPT),
            processors=Grammar(language),
            stop=EndOfSequence(language.eos),
            tokenizer=tokenizer(),
        )

        assert generator([1]).text in (["true"], ["false"])

    def test_a_row_without_a_token_left_ends_by_that_name(self) -> None:
        """A stage that stands in the grammar's way is no silent matter."""
        scores = torch.zeros(1, 6)
        generator = Generator(
            ScriptedDecoder(scores, **SCRIPT), processors=Grammar(Brackets(1, eos=())), sampler=Greedy()
        )

        result = generator([1])

        assert [[OPEN, CLOSE]] == result.ids
        assert result.finishes[0] is not None
        assert "no_token_left" == result.finishes[0].reason
        assert result.finishes[0].matched.startswith("Grammar(")
