"""Asking the drafters: each one once, over the whole table."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar, cast

import attrs
import torch
from torch import Tensor

from ..history import History
from ..optional_protocols import CatchesUp, DraftsWhile, EndsDrafts, GoesOn, PausesDrafts
from ..protocols import Draft, DraftLength, SamplesTokens
from ..results.timers import Timers
from ..scores import Scores
from .active_request import ActiveRequest
from .drafting import Asked, Drafting, check_draft
from .evidence import Outlook, outlooks
from .samples_by_row import RaisedInRowsError, SamplesByRow, in_rows

Item = TypeVar("Item")
Question = tuple[ActiveRequest, Drafting, Asked]


# Not around the whole run: between steps the caller's code runs, perhaps in another thread.
@torch.no_grad()
def ask(
    requests: Sequence[ActiveRequest],
    now: History,
    active: int,
    timers: Timers,
    alone: bool,
    most: int | None,
    failed: Callable[[ActiveRequest, Exception], None],
) -> list[Asked | None] | None:
    """
    Let the drafters of *requests* propose.

    Requests may share a drafter: it is called once, with budgets for their rows. So a row of the
    table is the same row for target and draft model.

    Args:
        requests: They are active.

        now: The table's tokens so far, width 1.

        active: How many rows of *requests* have not ended, those in prefill included.

        timers: The table's.

        alone: Whether the table is that of the one request.

        most: The columns of a step's forward: a drafter that lacks more of a row's tokens catches up
            by as many, and drafts later. None for any number.

        failed: Told of each request whose part raised. What a shared drafter raises itself, all requests
            that share it have raised.

    Returns:
        For each request what it asked for, None where no row can be drafted for; None if no request asks.
    """
    candidates = list(filter(None, (_candidate(request, now) for request in requests)))
    going_on = [one for group in _by_policy(candidates) if not _pauses(group, failed) for one in group]
    if not going_on:
        return None
    questions = [
        question
        for group in _by_policy(_asked_for_outlooks(going_on, now, timers, failed))
        for question in _questions(group, active, failed)
    ]
    asked = {id(question[0]): question[2] for question in questions}
    drafting = [question for question in questions if question[2].allowed]
    for group in _grouped(drafting, lambda question: id(question[1].drafter)):
        with timers.phase("draft"):
            for (request, _, _), answer in _group_drafts(group, now, alone, most, failed):
                asked[id(request)] = answer
    return [asked.get(id(request)) for request in requests]


@attrs.define(eq=False)
class _Candidate:
    """A request that may draft in this step."""

    request: ActiveRequest
    drafting: Drafting
    rows: list[int]
    """Its rows that have their first token."""

    outlook: Outlook | None = None
    """What its drafter says of drafts for them; None if the length does not depend on it."""


def _candidate(request: ActiveRequest, now: History) -> _Candidate | None:
    """What is to be asked of *request*; None without a drafter, or before the first token."""
    drafting = request.run.drafting
    if drafting is None:
        return None
    rows = request.active
    if not request.begun:
        # The first token does not wait for the drafter's prefill.
        begun = (now.length[request.rows, 0] > now.prompt[request.rows]).tolist()
        rows, request.begun = [row for row in rows if begun[row]], all(begun)
    return _Candidate(request, drafting, rows) if rows else None


def _by_policy(candidates: Sequence[_Candidate]) -> list[list[_Candidate]]:
    """*candidates* that share a draft length policy together."""
    return _grouped(candidates, lambda one: id(one.drafting.length))


def _pauses(group: Sequence[_Candidate], failed: Callable[[ActiveRequest, Exception], None]) -> bool:
    """Whether the policy that the requests of *group* share does without drafts in this step."""
    drafting = group[0].drafting
    if not drafting.pauses or not all(one.drafting.weighs_evidence for one in group):
        return False
    try:
        return not cast(PausesDrafts, drafting.length).wants_evidence()
    except Exception as error:
        for one in group:
            failed(one.request, error)
        return True


def _asked_for_outlooks(
    candidates: Sequence[_Candidate],
    now: History,
    timers: Timers,
    failed: Callable[[ActiveRequest, Exception], None],
) -> list[_Candidate]:
    """*candidates* with what their drafters say, each asked once; without those whose drafter raised."""
    raised: list[_Candidate] = []
    weighing = [one for one in candidates if one.drafting.weighs_evidence]
    for group in _grouped(weighing, lambda one: id(one.drafting.drafter)):
        rows = [[one.request.rows.start + row for row in one.rows] for one in group]
        try:
            with timers.phase("draft"):
                most = [cast(DraftLength, one.drafting.length).most for one in group]
                drafting = group[0].drafting
                said = outlooks(drafting.drafter, drafting.foresees, rows, most, now)
        except Exception as error:
            raised += group
            for one in group:
                failed(one.request, error)
        else:
            for one, outlook in zip(group, said, strict=True):
                one.outlook = outlook
    return [one for one in candidates if one not in raised]


def _questions(
    group: Sequence[_Candidate], active: int, failed: Callable[[ActiveRequest, Exception], None]
) -> list[Question]:
    """What requests that share a draft length policy ask for: it decides once, for all of their rows."""
    own = sum(len(one.rows) for one in group)
    # Other rows would wait for a longer forward too, the prefill of newcomers included.
    delayed = active - own
    said = [one.outlook for one in group if one.outlook is not None]
    evidence: tuple[int, ...] | None = None
    if len(said) == len(group):
        evidence = tuple(each for outlook in said for each in outlook.evidence) + (0,) * delayed
    try:
        lengths = iter(group[0].drafting.lengths(own, delayed, evidence))
    except Exception as error:
        for one in group:
            failed(one.request, error)
        return []
    return [
        (
            one.request,
            one.drafting,
            Asked(
                one.rows,
                list(islice(lengths, len(one.rows))),
                one.request.empty_draft,
                None if evidence is None else one.outlook,
            ),
        )
        for one in group
    ]


def _grouped(items: Sequence[Item], key: Callable[[Item], object]) -> list[list[Item]]:
    """*items* of equal *key* together, in the order of the first of each."""
    if len(items) < 2:
        return [list(items)] if items else []
    groups: dict[object, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _group_drafts(
    group: Sequence[Question],
    now: History,
    alone: bool,
    most: int | None,
    failed: Callable[[ActiveRequest, Exception], None],
) -> list[tuple[Question, Asked]]:
    """The answers to requests that share a drafter, without those whose parts raised."""
    while group:
        try:
            return list(zip(group, _proposed(group, now, alone, most), strict=True))
        except RaisedInRowsError as raised:
            for request in (request for request, _, _ in group if request.rows == raised.rows):
                failed(request, raised.error)
            # The others are asked again: a proposal is a function of the history.
            group = [one for one in group if one[0].rows != raised.rows]
        except Exception as error:
            for request, _, _ in group:
                failed(request, error)
            return []
    return []


def _proposed(group: Sequence[Question], now: History, alone: bool, most: int | None) -> list[Asked]:
    """What requests that share a drafter asked for, with their drafts as they fit."""
    drafting = group[0][1]
    budget = _budget(group, now)
    # A copy, so that a drafter cannot change the loop's lengths.
    shown = now.at(now.length.clone())
    if not drafting.catches_up:
        return _drafted(group, [one for _, _, one in group], now, shown, budget, alone)
    late = torch.zeros(len(budget), dtype=torch.bool)
    if most is not None:
        late = cast(CatchesUp, drafting.drafter).catch_up(shown, budget > 0, most) > most
        budget = torch.where(late, 0, budget)
    answers = [_with_catching_up(request, one, late[request.rows].tolist()) for request, _, one in group]
    answers = _drafted(group, answers, now, shown, budget, alone)
    # Now that nothing was raised: otherwise the drafter is asked again, and feeds in this step too.
    for request, _, _ in group:
        request.drafted = not late[request.rows].any()
    return answers


def _drafted(
    group: Sequence[Question],
    answers: Sequence[Asked],
    now: History,
    shown: History,
    budget: Tensor,
    alone: bool,
) -> list[Asked]:
    """*answers* with drafts of at most *budget* tokens by the drafter, which is *shown* the tokens so far."""
    if not budget.any():
        return list(answers)
    drafting = group[0][1]
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
        attrs.evolve(answer, draft=own.fitted(_rows(draft, request.rows), budget[request.rows]))
        for (request, own, _), answer in zip(group, answers, strict=True)
    ]


def _with_catching_up(request: ActiveRequest, asked: Asked, late: list[bool]) -> Asked:
    """*asked* with the rows that the drafter is fed missing tokens of; *late* ones get no draft yet."""
    # The first proposal feeds what is left of the prompt.
    fed = late if request.drafted else [True] * len(late)
    return attrs.evolve(asked, catching_up=tuple(fed[row] for row in asked.rows)) if any(fed) else asked


def _budget(group: Sequence[Question], now: History) -> Tensor:
    """How many tokens to draft for each row of the table, ``[rows]``."""
    # Lists, since operations on small tensors take longer, between forwards that empty the caches.
    last, length = now.ids.shape[-1] - 1, now.length[:, 0].tolist()
    budget = [0] * len(length)
    for request, _, one in group:
        for row, allowed in zip(one.rows, one.lengths, strict=True):
            own = request.rows.start + row
            budget[own] = max(0, min(allowed, last - length[own]))
    return torch.tensor(budget)


def _sampling(group: Sequence[Question], now: History, alone: bool, vocab: int) -> SamplesTokens:
    """What the drafter samples with: each request's pipeline in its own rows."""
    if alone:
        return group[0][1].sampling(now)
    return SamplesByRow(
        [
            (request.rows, in_rows(request.rows, drafting.sampling, now.rows(request.rows)))
            for request, drafting, _ in group
        ]
    )


def _ending(group: Sequence[Question], alone: bool) -> GoesOn | None:
    """What ends drafts early, each request's in its own rows; None where nothing does."""
    endings = [
        (request.rows, cast(EndsDrafts, drafting.length).goes_on)
        for request, drafting, _ in group
        if drafting.ends_drafts
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
