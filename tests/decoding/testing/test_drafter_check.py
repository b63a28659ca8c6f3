"""The contract checks of a drafter."""

import pytest
import torch

from decodekit.decoding.protocols import Draft
from decodekit.speculation import PromptLookup, SuffixAutomaton
from decodekit.testing import check_drafter

from ...speculation.drafters.test_every_drafter import DRAFTERS, ROWS, VOCAB


class Wrong:
    """A drafter of a function."""

    def __init__(self, propose):
        self._propose = propose
        self.calls = 0

    def propose(self, history, budget, sample):
        self.calls += 1
        return self._propose(self, history, budget)


class WithEvidence(Wrong):
    """One that declares to be a function of the history."""

    def evidence(self, history, budget):
        return torch.ones_like(budget)


def ids(budget, token=1, more=0):
    """As many equal tokens as each row may have."""
    columns = torch.arange(int(budget.max()) + more)
    return torch.where(columns < budget[:, None] + more, token, -1)


def scores(budget, value=0.0):
    """All tokens alike."""
    return torch.full((len(budget), int(budget.max()), 16), value)


def certain(self, history, budget):
    """Scores of one token, and another one."""
    found = scores(budget)
    found[..., 2] = 50.0
    return Draft(ids(budget), found)


def write_ids(self, history, budget):
    """In place."""
    history.ids[:] = 1
    return Draft(ids(budget))


def write_budget(self, history, budget):
    """In place."""
    draft = Draft(ids(budget))
    budget[:] = 0
    return draft


def gap(self, history, budget):
    """A token after -1."""
    draft = ids(budget)
    draft[:, 0] = -1
    return Draft(draft)


WRONG = {
    "vocabulary": (
        Wrong(lambda self, h, b: Draft(ids(b, 16))),
        "ids of the vocabulary, 0 to 15.*fed.*came: ids",
    ),
    "negative": (Wrong(lambda self, h, b: Draft(ids(b, -2))), "ids of the vocabulary"),
    "more": (Wrong(lambda self, h, b: Draft(ids(b, more=1))), "at most its budget of .*fed.*came: ids"),
    "gap": (Wrong(gap), "-1 must end a row's draft"),
    "history": (Wrong(write_ids), "must not write into its history: fed"),
    "budget": (Wrong(write_budget), "must not write into its budget: fed"),
    "dtype": (Wrong(lambda self, h, b: Draft(ids(b).int())), "int64 ids .*fed.*came: torch.int32"),
    "rows": (Wrong(lambda self, h, b: Draft(ids(b)[:1])), "int64 ids"),
    "no draft": (Wrong(lambda self, h, b: ids(b)), "must propose a Draft"),
    "scores": (Wrong(lambda self, h, b: Draft(ids(b), torch.zeros(1, 1, 1))), "scores must be"),
    "integral scores": (Wrong(lambda self, h, b: Draft(ids(b), scores(b).long())), "scores must be floating"),
    "NaN scores": (Wrong(lambda self, h, b: Draft(ids(b), scores(b, torch.nan))), "not NaN .* came: token 1"),
    "infinite scores": (Wrong(lambda self, h, b: Draft(ids(b), scores(b, torch.inf))), "not NaN or"),
    "impossible": (Wrong(lambda self, h, b: Draft(ids(b), scores(b, -torch.inf))), "finite of itself"),
    "one token of all": (Wrong(lambda self, h, b: Draft(ids(b), scores(b))), "drawn from the softmax"),
    "another token": (Wrong(certain), "drawn from the softmax of their scores"),
    "parents": (Wrong(lambda self, h, b: Draft(ids(b), None, ids(b) + 9)), "each parent must be"),
    "undeclared tree": (Wrong(lambda self, h, b: Draft(ids(b), None, ids(b) * 0 - 1)), "tree_nodes"),
    "calls": (
        WithEvidence(lambda self, h, b: Draft(ids(b, self.calls % 5))),
        "a function of the history: fed",
    ),
    "neighbours": (
        WithEvidence(lambda self, h, b: Draft(ids(b, int(h.length.sum()) % 7))),
        "of a row, not of its neighbours: fed",
    ),
}


class TestCheckDrafter:
    @pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS.keys())
    def test_passes_every_drafter(self, make) -> None:
        """Chains and trees, with caches and without."""
        table = torch.randn(11, VOCAB, generator=torch.Generator().manual_seed(2))
        check_drafter(make(table, 0), vocab_size=VOCAB, batch_size=ROWS, draft_length=3, max_length=30)

    @pytest.mark.parametrize("make", [PromptLookup, SuffixAutomaton])
    def test_passes_drafters_of_the_text_at_other_sizes(self, make) -> None:
        """One row, and drafts of one token."""
        check_drafter(make(), batch_size=1, draft_length=1, vocab_size=3)
        check_drafter(make(), batch_size=5, draft_length=8, max_length=200)

    @pytest.mark.parametrize(("drafter", "message"), WRONG.values(), ids=WRONG.keys())
    def test_finds_a_broken_rule(self, drafter, message: str) -> None:
        """And says what was fed, what came, and the rule."""
        with pytest.raises(AssertionError, match=rf"(?s){message}"):
            check_drafter(drafter)

    def test_finds_missing_evidence(self) -> None:
        """A draft without evidence would never be chosen by a mixture."""

        class Silent(WithEvidence):
            def evidence(self, history, budget):
                return torch.zeros_like(budget)

        with pytest.raises(AssertionError, match="evidence must be 0 only where there is no draft"):
            check_drafter(Silent(lambda self, h, b: Draft(ids(b))))

    @pytest.mark.parametrize(
        ("of_evidence", "of_tokens", "message"),
        [(1, 0, "foresee with the evidence that it gives"), (0, 1, "foresee the first tokens of its drafts")],
    )
    def test_finds_wrong_foresight(self, of_evidence, of_tokens, message: str) -> None:
        """From which a policy would learn what no draft shows."""

        class Wrong(PromptLookup):
            def foresee(self, history, budget):
                evidence, tokens = super().foresee(history, budget)
                return evidence + of_evidence, tokens + of_tokens

            def evidence(self, history, budget):
                return super().foresee(history, budget)[0]

        with pytest.raises(AssertionError, match=message):
            check_drafter(Wrong())

    @pytest.mark.parametrize(
        "answer",
        [
            lambda budget: torch.full((len(budget),), 0.5),
            lambda budget: budget[:, None] + 1,
            lambda budget: [1] * len(budget),
            lambda budget: torch.ones(len(budget) + 1, dtype=torch.int64),
        ],
        ids=["dtype", "shape", "list", "rows"],
    )
    def test_finds_evidence_that_is_no_number_of_each_row(self, answer) -> None:
        """As the loop would, in whose middle it were too late."""

        class Wrong(WithEvidence):
            def evidence(self, history, budget):
                return answer(budget)

        with pytest.raises(AssertionError, match=r"int64 tensors \[3\]; came: "):
            check_drafter(Wrong(lambda self, h, b: Draft(ids(b))))

    def test_refuses_wrong_arguments(self) -> None:
        """Before anything is called."""
        with pytest.raises(TypeError, match="'drafter' must have propose"):
            check_drafter(PromptLookup)
        with pytest.raises(ValueError, match="'max_length' must be >= 16: got 10"):
            check_drafter(PromptLookup(), max_length=10)
