"""Drafting tokens that a grammar forces."""

from typing import Any

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
    SamplingPipeline,
)
from decodekit.decoding.protocols import Drafter, SamplesTokens
from decodekit.processors import Grammar, Language, Temperature, TopK
from decodekit.speculation import DraftModel, ForcedTokens, SpeculativeGenerator, SuffixAutomaton
from decodekit.testing import ScriptedDecoder

from ...processors.grammar.languages import END, Brackets, cases, tokenizer
from ..same_text import Failing, draft_ids, history, table

OPEN, CLOSE, PAIR = 0, 1, 2
SHAPE = {"max_length": 96, "widths": (1, 5, 16), "scored_width": 5}


@attrs.define(eq=False)
class Script:
    """Drafts *draft*, and records its arguments."""

    draft: Draft
    shown: list[Any] = attrs.field(factory=list)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        rows = [history.before(row, 0).tolist() for row in range(len(budget))]
        self.shown.append((rows, budget.tolist()))
        return self.draft


class TestDraftTokens:
    @pytest.mark.parametrize(
        ("text", "budget", "expected"),
        [
            # At most two pairs of brackets.
            pytest.param([], 4, [], id="a-choice"),
            pytest.param([OPEN, OPEN], 1, [CLOSE], id="no-further-than-the-budget"),
            pytest.param([OPEN, OPEN], 4, [CLOSE, CLOSE, END], id="as-long-as-it-is-forced"),
            pytest.param([PAIR], 4, [], id="an-end-is-an-alternative"),
            pytest.param([PAIR, PAIR], 2, [END], id="one-end"),
            pytest.param([CLOSE], 4, [], id="refused"),
            pytest.param([OPEN, OPEN], 0, [], id="idle"),
        ],
    )
    def test_what_has_to_follow(self, text: list[int], budget: int, expected: list[int]) -> None:
        """Only generated tokens count; the prompt, one token, does not."""
        drafter = ForcedTokens(Grammar(Brackets(2)))

        assert [expected] == draft_ids(drafter, [[CLOSE, *text]], [budget])

    def test_rows_of_different_languages(self) -> None:
        """Including rows without a language."""
        drafter = ForcedTokens(Grammar([Brackets(2), None, Brackets(1, eos=(4,)), Brackets(1)]))
        rows = [[9, OPEN, OPEN], [9, OPEN, OPEN], [9], [9, OPEN]]

        assert [[CLOSE, CLOSE], [], [], [CLOSE]] == draft_ids(drafter, rows, [2, 4, 4, 1])

    def test_one_of_several_ends_is_not_forced(self) -> None:
        """Of several allowed ends none is forced."""
        assert [[]] == draft_ids(ForcedTokens(Grammar(Brackets(1, eos=(3, 4)))), [[9, PAIR]], [4])

    def test_the_fixed_parts_of_a_json_text(self) -> None:
        """From the first brace to the first character that is free."""
        language = cases()["json"].language
        brace = tokenizer().convert_tokens_to_ids("{")
        [drafted] = draft_ids(ForcedTokens(Grammar(language)), [[9, brace]], [8])
        matcher = language.matcher()
        matcher.advance([brace])

        for token in drafted:
            assert [token] == matcher.mask().nonzero().flatten().tolist()
            assert 1 == matcher.advance([token])
        assert matcher.mask().count_nonzero() > 1


class TestThen:
    def test_continues_after_the_forced_tokens(self) -> None:
        """The second drafter sees the forced tokens as generated, and the rest of the budget."""
        then = Script(Draft(torch.tensor([[-1, -1, -1], [5, 6, 7], [4, -1, -1]])))
        drafter = ForcedTokens(Grammar([Brackets(3), None, Brackets(3)]), then)
        rows = [[9, OPEN, OPEN, OPEN, CLOSE, CLOSE], [8, 1], [9, OPEN]]
        before = history(rows)

        draft = drafter.propose(before, torch.tensor([3, 3, 1]), SamplingPipeline(None, Greedy()))

        # After an end of sequence there is nothing to draft.
        assert [([[*rows[0], CLOSE, END], *rows[1:]], [0, 3, 1])] == then.shown
        assert [[CLOSE, END], [5, 6, 7], [4]] == [
            [i for i in row if i >= 0][:3] for row in draft.ids.tolist()
        ]
        assert history(rows).ids.equal(before.ids)
        assert history(rows).length.equal(before.length)

    def test_is_not_called_without_a_budget(self) -> None:
        """A draft model would run forwards for nothing."""
        then = Script(Draft(torch.empty(1, 0, dtype=torch.int64)))

        assert [[CLOSE, CLOSE]] == draft_ids(ForcedTokens(Grammar(Brackets(2)), then), [[9, 0, 0]], [2])
        assert [] == then.shown

    def test_scores_belong_to_their_tokens(self) -> None:
        """Point masses for forced tokens, then the other drafter's scores."""
        scores = torch.randn(2, 2, 5)
        then = Script(Draft(torch.tensor([[-1, -1], [1, 2]]), scores))
        drafter = ForcedTokens(Grammar([Brackets(1), None]), then)

        draft = drafter.propose(
            history([[9, OPEN], [9]]), torch.tensor([4, 4]), SamplingPipeline(None, Greedy())
        )

        assert draft.scores is not None
        certain = torch.full((5,), -torch.inf)
        certain[CLOSE] = 0.0
        # One pair, closed: then the end.
        assert [CLOSE, END, -1, -1] == draft.ids[0, :4].tolist()
        assert certain.equal(draft.scores[0, 0])
        assert [1, 2] == draft.ids[1, :2].tolist()
        assert scores[1].equal(draft.scores[1, :2])

    def test_scores_behind_forced_tokens(self) -> None:
        """In one row by two columns, in another by none."""
        scores = torch.randn(2, 2, 5)
        then = Script(Draft(torch.tensor([[2, 0], [1, 2]]), scores))
        drafter = ForcedTokens(ForceTwo(None), then)

        draft = drafter.propose(history([[9], [9]]), torch.tensor([4, 4]), SamplingPipeline(None, Greedy()))

        assert [[4, 4, 2, 0], [1, 2, -1, -1]] == draft.ids.tolist()
        assert draft.scores is not None
        assert scores[0].equal(draft.scores[0, 2:])
        assert scores[1].equal(draft.scores[1, :2])

    def test_a_tree_grows_from_the_last_forced_token(self) -> None:
        """Its parents are shifted."""
        then = Script(
            Draft(torch.tensor([[2, 0, 1], [1, 2, 0]]), parents=torch.tensor([[-1, -1, 0], [-1, 0, 1]]))
        )

        draft = ForcedTokens(ForceTwo(None), then).propose(
            history([[9], [9]]), torch.tensor([4, 4]), SamplingPipeline(None, Greedy())
        )

        assert [[4, 4, 2, 0, 1], [1, 2, 0, -1, -1]] == draft.ids.tolist()
        assert draft.parents is not None
        assert [-1, 0, 1, 1, 2] == draft.parents[0].tolist()
        assert [-1, 0, 1] == draft.parents[1, :3].tolist()

    def test_the_target_is_checked(self) -> None:
        """The second drafter checks it."""
        then = DraftModel(ScriptedDecoder(table(0, 5)))

        with pytest.raises(ValueError, match="vocabulary must be the target's, 6: got 5"):
            SpeculativeGenerator(ScriptedDecoder(table(0, 6)), ForcedTokens(Grammar(Brackets(1)), then))


class ForceTwo(Grammar):
    """Forces token 4 twice, in the first row."""

    def forced(self, history: History, most: Tensor) -> list[list[int]]:
        return [[4, 4], *[[] for _ in most[1:]]]


class TestRefuses:
    @pytest.mark.parametrize("grammar", [Brackets(1), None, Temperature(1.0)])
    def test_what_is_no_grammar(self, grammar: object) -> None:
        """It must be the processor, not its language."""
        with pytest.raises(TypeError, match="'grammar' must be"):
            ForcedTokens(grammar)  # type: ignore[arg-type]

    @pytest.mark.parametrize("then", [3, DraftModel])
    def test_what_is_no_drafter(self, then: object) -> None:
        """A class is a likely mistake."""
        with pytest.raises(TypeError, match=r"'then' must be None or have propose\(history"):
            ForcedTokens(Grammar(None), then)  # type: ignore[arg-type]


def languages(name: str) -> list[Language | None]:
    """One language per row; the last but one row is unconstrained."""
    if name == "brackets":
        return [Brackets(4), Brackets(1), None, Brackets(2)]
    return [cases()["json"].language, cases()["regex"].language, None, cases()["json"].language]


@pytest.mark.parametrize("name", ["brackets", "json"])
class TestGeneration:
    @pytest.mark.parametrize("then", [None, "model", "suffix"])
    @pytest.mark.parametrize("seed", range(4))
    def test_same_text(self, name: str, then: str | None, seed: int) -> None:
        """Equal to plain decoding, in ragged batches; forced tokens are always accepted."""
        rows = languages(name)
        vocab = 6 if name == "brackets" else cases()["json"].vocab
        scores, grammar = table(seed, vocab), Grammar(rows)
        further: dict[str | None, Drafter | None] = {
            None: None,
            "model": DraftModel(ScriptedDecoder(scores, 4, **SHAPE)),
            "suffix": SuffixAutomaton(min_match=2),
        }
        ends = END if name == "brackets" else tokenizer().eos_token_id
        parts: dict[str, Any] = {
            "processors": grammar | Temperature(1.5) | TopK(20),
            "sampler": Greedy() if seed == 0 else Sample(seed),
            "stop": EndOfSequence(ends) | MaxNewTokens(40),
        }
        plain = Generator(ScriptedDecoder(scores, 4, **SHAPE), **parts)
        fast = SpeculativeGenerator(
            ScriptedDecoder(scores, 4, **SHAPE),
            ForcedTokens(grammar, further[then]),
            num_draft_tokens=4,
            **parts,
        )
        prompts, random_streams = [[1, 2], [2], [1, 2, 3], [5]], [3, 1, 4, 9]
        expected, actual = plain(prompts, random_streams), fast(prompts, random_streams)

        assert (expected.ids, expected.finishes) == (actual.ids, actual.finishes)
        if then is None:
            assert actual.statistics.drafted == actual.statistics.accepted
            assert sum(actual.statistics.accepted) > 0

    def test_a_failure_leaves_the_generator_usable(self, name: str) -> None:
        """The next text equals plain decoding."""
        rows = languages(name)
        vocab = 6 if name == "brackets" else cases()["json"].vocab
        grammar = Grammar(rows)
        parts: dict[str, Any] = {"processors": grammar, "sampler": Sample(2), "stop": MaxNewTokens(20)}
        plain = Generator(ScriptedDecoder(table(1, vocab), 4, **SHAPE), **parts)
        fast = SpeculativeGenerator(
            plain.decoder, ForcedTokens(grammar, Failing(SuffixAutomaton(), at=2)), **parts
        )
        prompts = [[1, 2], [2], [1, 2, 3], [5]]
        expected = plain(prompts).ids
        with pytest.raises(RuntimeError, match="broken"):
            fast(prompts)

        assert expected == fast(prompts).ids
