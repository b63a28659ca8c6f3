"""RejectionSampling and BlockVerification column by column; test_exactness_check has their distribution."""

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.decoding import Draft, Generator, Greedy, History, MaxNewTokens, Sample
from decodekit.decoding.protocols import Drafter, SamplesTokens, Verification
from decodekit.decoding.sampling import noise
from decodekit.decoding.scores import Scores
from decodekit.processors import Temperature, TopK
from decodekit.speculation import (
    BlockVerification,
    DraftModel,
    PromptLookup,
    RejectionSampling,
    SpeculativeGenerator,
)
from decodekit.testing import ScriptedDecoder

BOTH = pytest.mark.parametrize(
    "verification", [RejectionSampling(), BlockVerification()], ids=["rejection", "block"]
)
TABLE = torch.randn(31, 9, generator=torch.Generator().manual_seed(0))


def verify(
    verification: Verification,
    ids: list[list[int]],
    p: list[list[list[float]]],
    q: list[list[list[float]]] | None = None,
    start: int = 5,
) -> tuple[list[int], list[int]]:
    """Number accepted and next token of draft *ids*, given probabilities; the target samples 0."""
    draft = Draft(torch.tensor(ids), None if q is None else torch.tensor(q).log())
    batch, k = draft.ids.shape
    logits = torch.tensor(p).log()
    left = (logits > -torch.inf).any(dim=-1)
    length = start + torch.arange(k + 1).minimum((draft.ids >= 0).sum(dim=-1, keepdim=True))
    window = History(
        torch.zeros(batch, 1, 16).long(), length, torch.ones(batch).long(), torch.arange(batch) + 70
    )
    accepted, next_token = verification(draft, torch.where(left, 0, -1), Scores(lambda: logits), window)
    return accepted.tolist(), next_token.tolist()


@BOTH
class TestBoth:
    def test_a_draft_like_the_target_stands(self, verification: Verification) -> None:
        """P = q: accepts all, for any noise, then samples from p."""
        distribution = [[[0.2, 0.5, 0.3], [0.6, 0.4, 0.0], [0.0, 0.0, 1.0]]]
        for start in range(200):
            assert ([2], [2]) == verify(verification, [[1, 0]], distribution, [distribution[0][:2]], start)

    def test_a_forbidden_token_is_rejected(self, verification: Verification) -> None:
        """P = 0: always rejected, and the replacement is allowed."""
        p = [[[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]]
        for start in range(200):
            accepted, next_token = verify(verification, [[0]], p, [[[1.0, 0.0, 0.0]]], start)

            assert [0] == accepted
            assert next_token[0] in (1, 2)

    @pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53], ids=["lowest", "highest"])
    def test_no_number_is_extreme_enough(
        self, verification: Verification, u: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even uniform numbers of 0 and just below 1 accept and sample nothing forbidden."""

        def extreme(*keys: Tensor | int) -> Tensor:
            shape = torch.broadcast_shapes(*(key.shape for key in keys if isinstance(key, Tensor)))
            return torch.full(shape, u, dtype=torch.float64)

        monkeypatch.setattr(noise, "uniform", extreme)
        p = [[[0.0, 0.7, 0.3, 0.0], [0.0, 0.1, 0.9, 0.0]]]

        for drafted, q in ((0, [1.0, 0.0, 0.0, 0.0]), (3, [0.0, 0.4, 0.3, 0.3]), (1, [0.0, 1.0, 0.0, 0.0])):
            accepted, next_token = verify(verification, [[drafted]], p, [[q]])

            assert drafted not in (0, 3) or accepted == [0]
            assert next_token[0] in (1, 2)

    def test_a_residual_of_nothing_is_the_target(self, verification: Verification) -> None:
        """Rejecting a token with q = 0 leaves p itself."""
        p = [[[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]]]
        drawn = {verify(verification, [[0]], p, [[[0.0, 0.25, 0.75]]], start)[1][0] for start in range(50)}

        assert {1, 2} == drawn

    def test_no_token_left(self, verification: Verification) -> None:
        """A column of -inf or NaN scores accepts nothing, and has no next token."""
        for nothing in (0.0, torch.nan):
            p = [[[0.5, 0.5], [nothing, nothing], [1.0, 0.0]]]

            assert ([1], [-1]) == verify(verification, [[1, 0]], p, [[[0.5, 0.5], [0.5, 0.5]]])

    def test_rows_do_not_see_each_other(self, verification: Verification) -> None:
        """Ragged rows, a row without a draft and an idle one: each as alone."""
        distributions = torch.rand(4, 4, 5, generator=torch.Generator().manual_seed(1)).softmax(-1)
        drafts = torch.rand(4, 3, 5, generator=torch.Generator().manual_seed(2)).softmax(-1)
        distributions[3], drafts[1, 1:] = torch.nan, torch.nan
        ids = torch.tensor([[1, 2, 3], [4, -1, -1], [-1, -1, -1], [-1, -1, -1]])
        choices = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4], [2, 2, 2, 2], [-1, -1, -1, -1]])
        for start in range(50):
            together = decide(verification, Draft(ids, drafts.log()), choices, distributions, start)
            for row in range(4):
                k = int((ids[row] >= 0).sum())
                alone = decide(
                    verification,
                    Draft(ids[row : row + 1, :k], drafts[row : row + 1, :k].log()),
                    choices[row : row + 1, : k + 1],
                    distributions[row : row + 1, : k + 1],
                    start,
                    row,
                )

                assert [together[0][row]] == alone[0]
                assert [together[1][row]] == alone[1]
            assert together[0][2:] == [0, 0]
            assert together[1][2:] == [2, -1]

    def test_needs_draws_from_the_softmax(self, verification: Verification) -> None:
        """Another sampler is refused when the generator is built, and named."""
        with pytest.raises(ValueError, match=r"sampler that draws from the softmax.*got Greedy\(\)"):
            SpeculativeGenerator(
                ScriptedDecoder(TABLE), PromptLookup(), sampler=Greedy(), verification=verification
            )

    def test_trees_are_refused(self, verification: Verification) -> None:
        """A tree has no single prefix."""
        draft = Draft(torch.tensor([[0, 1]]), None, torch.tensor([[-1, -1]]))
        window = History(
            torch.zeros(1, 1, 4).long(), torch.ones(1, 3).long(), torch.ones(1).long(), torch.ones(1).long()
        )
        with pytest.raises(ValueError, match="along a chain: got a tree"):
            verification(draft, torch.zeros(1, 3).long(), Scores(lambda: torch.zeros(1, 3, 2)), window)

    def test_a_drafter_draws_for_all_rows(self, verification: Verification) -> None:
        """With rows left out the noise would be assigned to wrong rows."""
        sampler = verification.drafting(Sample(seed=0), torch.tensor([3, 4]))
        history = History(
            torch.zeros(1, 1, 4).long(), torch.ones(1, 1).long(), torch.ones(1).long(), torch.ones(1).long()
        )
        with pytest.raises(ValueError, match="all 2 rows at once: got 1"):
            sampler(torch.zeros(1, 1, 3), history)

    @pytest.mark.parametrize("chain", [Temperature(0.8), Temperature(0.8) | TopK(4)], ids=["all", "top-k"])
    def test_a_perfect_draft_is_always_kept(self, verification: Verification, chain: Temperature) -> None:
        """With equal draft and target all is accepted: τ = k + 1. The text differs from plain decoding."""
        parts = {"processors": chain, "sampler": Sample(seed=3), "stop": MaxNewTokens(41)}
        fast = SpeculativeGenerator(
            ScriptedDecoder(TABLE), DraftModel(ScriptedDecoder(TABLE)), verification=verification, **parts
        )([1, 2, 3])
        plain = Generator(ScriptedDecoder(TABLE), **parts)([1, 2, 3])

        assert 5.0 == fast.statistics.mean_accepted_length
        assert plain.ids[0][0] == fast.ids[0][0]
        assert plain.ids != fast.ids

    def test_without_a_draft_it_is_plain_decoding(self, verification: Verification) -> None:
        """Token for token: without a draft the target's sampled token is used."""
        parts = {"sampler": Sample(seed=3), "stop": MaxNewTokens(30)}
        fast = SpeculativeGenerator(ScriptedDecoder(TABLE), Silent(), verification=verification, **parts)
        plain = Generator(ScriptedDecoder(TABLE), **parts)

        assert plain([1, 2, 3]).ids == fast([1, 2, 3]).ids

    def test_rows_are_what_they_are_alone(self, verification: Verification) -> None:
        """A row's text does not depend on other rows with drafts of other lengths."""
        perturbed = TABLE + 0.5 * torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(1))
        for drafter in (DraftModel, lambda decoder: Ragged(DraftModel(decoder))):
            together, alone = (
                SpeculativeGenerator(
                    ScriptedDecoder(TABLE, rows),
                    drafter(ScriptedDecoder(perturbed, rows)),
                    verification=verification,
                    sampler=Sample(seed=5),
                    stop=MaxNewTokens(25),
                )
                for rows in (3, 1)
            )
            prompts = [[1, 2, 3], [4], [5, 6]]
            expected = [alone(prompt, random_streams=[i]).ids[0] for i, prompt in enumerate(prompts)]

            assert expected == together(prompts).ids


def decide(
    verification: Verification,
    draft: Draft,
    choices: Tensor,
    distributions: Tensor,
    start: int,
    stream: int = 0,
) -> tuple[list[int], list[int]]:
    """Result of *verification* for rows that begin at *start*, their streams counted from *stream*."""
    batch, columns = choices.shape
    length = start + torch.arange(columns).minimum((draft.ids >= 0).sum(dim=-1, keepdim=True))
    random_streams = torch.arange(batch) + stream
    window = History(torch.zeros(batch, 1, 64).long(), length, torch.ones(batch).long(), random_streams)
    accepted, next_token = verification(draft, choices, Scores(lambda: distributions.log()), window)
    return accepted.tolist(), next_token.tolist()


def one_row(width: int) -> History:
    """A window of one row with one token."""
    one = torch.ones(1, dtype=torch.int64)
    return History(torch.zeros(1, 1, 4).long(), one.expand(1, width), one, one)


class Silent:
    """Empty drafts of two columns."""

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        return Draft(torch.full((len(budget), 2), -1))


@attrs.frozen(eq=False)
class Ragged:
    """*drafter*, with some drafts cut short, by the row's length alone."""

    drafter: Drafter

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        draft = self.drafter.propose(history, budget, sample)
        short = history.length % 4
        return attrs.evolve(draft, ids=draft.ids.masked_fill(torch.arange(draft.ids.shape[1]) >= short, -1))
