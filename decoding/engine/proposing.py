"""Proposals: each drafter is called once, over the whole table, and its draft divided among requests."""

from collections.abc import Callable, Sequence
from typing import cast

import attrs
import torch
from torch import Tensor

from ..history import History
from ..optional_protocols import CatchesUp, DraftsWhile, EndsDrafts, GoesOn
from ..protocols import Draft, SamplesTokens
from ..scores import Scores
from .active_request import ActiveRequest
from .draft_checks import check_draft
from .proposal import Proposal, Question
from .samples_by_row import RaisedInRowsError, SamplesByRow, in_rows


def group_drafts(
    group: Sequence[Question],
    now: History,
    alone: bool,
    most: int | None,
    failed: Callable[[ActiveRequest, Exception], None],
) -> list[tuple[Question, Proposal]]:
    """
    Call a drafter once for the requests that share it, and divide its draft.

    Args:
        group: What they ask for.

        now: The table's tokens so far, width 1.

        alone: Whether the table is that of one request.

        most: Columns that a drafter may feed of what it lacks; None for any number.

        failed: Told of each request whose part raised.

    Returns:
        The answers to the requests, without those whose parts raised.
    """
    while group:
        try:
            return list(zip(group, _proposed(group, now, alone, most), strict=True))
        except RaisedInRowsError as raised:
            for one in group:
                if one.request.rows == raised.rows:
                    failed(one.request, raised.error)
            # The others are asked again: a proposal is a function of the history.
            group = [one for one in group if one.request.rows != raised.rows]
        except Exception as error:
            for one in group:
                failed(one.request, error)
            return []
    return []


def _proposed(group: Sequence[Question], now: History, alone: bool, most: int | None) -> list[Proposal]:
    """What requests that share a drafter asked for, with their drafts as they fit."""
    drafting = group[0].drafting
    budget = _budget(group, now)
    # A copy, so that a drafter cannot change the loop's lengths.
    shown = now.at(now.length.clone())
    if not drafting.catches_up:
        return _drafted(group, [one.proposal for one in group], now, shown, budget, alone)
    late = torch.zeros(len(budget), dtype=torch.bool)
    if most is not None:
        late = cast(CatchesUp, drafting.drafter).catch_up(shown, budget > 0, most) > most
        budget = torch.where(late, 0, budget)
    answers = [_with_catching_up(one, late[one.request.rows].tolist()) for one in group]
    answers = _drafted(group, answers, now, shown, budget, alone)
    # Now that nothing was raised: otherwise the drafter is asked again, and feeds in this step too.
    for one in group:
        one.request.drafted = not late[one.request.rows].any()
    return answers


def _drafted(
    group: Sequence[Question],
    answers: Sequence[Proposal],
    now: History,
    shown: History,
    budget: Tensor,
    alone: bool,
) -> list[Proposal]:
    """*answers* with drafts of at most *budget* tokens by the drafter, which is *shown* the tokens so far."""
    if not budget.any():
        return list(answers)
    drafting = group[0].drafting
    drafter, vocab = drafting.drafter, drafting.shape.vocab_size
    sample, goes_on = _sampling(group, now, alone, vocab), _ending(group, alone)
    if goes_on is None:
        draft = drafter.propose(shown, budget, sample)
    else:
        draft = cast(DraftsWhile, drafter).propose_while(shown, budget, sample, goes_on)
    check_draft(draft, len(budget), vocab)
    if alone:
        return [attrs.evolve(answers[0], draft=drafting.fitted(draft, budget))]
    if draft.parents is not None:
        raise ValueError(f"requests that share a decoder take no trees: got one from {drafter!r}")
    return [
        attrs.evolve(answer, draft=one.drafting.fitted(_rows(draft, rows), budget[rows]))
        for one, answer in zip(group, answers, strict=True)
        for rows in [one.request.rows]
    ]


def _with_catching_up(question: Question, late: list[bool]) -> Proposal:
    """The proposal with the rows that the drafter is fed missing tokens of; *late* ones get no draft yet."""
    proposal = question.proposal
    # The first one feeds what is left of the prompt.
    fed = late if question.request.drafted else [True] * len(late)
    if not any(fed):
        return proposal
    return attrs.evolve(proposal, catching_up=tuple(fed[row] for row in proposal.rows))


def _budget(group: Sequence[Question], now: History) -> Tensor:
    """How many tokens to draft for each row of the table, ``[rows]``."""
    # Lists, since operations on small tensors take longer, between forwards that empty the caches.
    last, length = now.ids.shape[-1] - 1, now.length[:, 0].tolist()
    budget = [0] * len(length)
    for one in group:
        for row, allowed in zip(one.proposal.rows, one.proposal.lengths, strict=True):
            own = one.request.rows.start + row
            budget[own] = max(0, min(allowed, last - length[own]))
    return torch.tensor(budget)


def _sampling(group: Sequence[Question], now: History, alone: bool, vocab: int) -> SamplesTokens:
    """What the drafter samples with: each request's pipeline in its own rows."""
    if alone:
        return group[0].drafting.sampling(now)
    return SamplesByRow(
        [
            (rows, in_rows(rows, one.drafting.sampling, now.rows(rows)))
            for one in group
            for rows in [one.request.rows]
        ]
    )


def _ending(group: Sequence[Question], alone: bool) -> GoesOn | None:
    """What ends drafts early, each request's in its own rows; None where nothing does."""
    endings = [
        (one.request.rows, cast(EndsDrafts, one.drafting.length).goes_on)
        for one in group
        if one.drafting.ends_drafts
    ]
    if alone and endings:
        return endings[0][1]

    def goes_on(ids: Tensor, scores: Scores) -> Tensor:
        on = torch.ones_like(ids, dtype=torch.bool)
        for rows, ending in endings:
            own = Scores(lambda rows=rows: scores.logits[rows])  # type: ignore[misc]
            on[rows] = in_rows(rows, ending, ids[rows], own)
        return on

    return goes_on if endings else None


def _rows(draft: Draft, rows: slice) -> Draft:
    return Draft(draft.ids[rows], None if draft.scores is None else draft.scores[rows])
