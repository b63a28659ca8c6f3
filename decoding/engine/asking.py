"""Which requests draft in a step, and how many tokens."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar, cast

import attrs
import torch

from ..history import History
from ..optional_protocols import PausesDrafts, RowLimit
from ..protocols import DraftLength
from ..results.timers import Timers
from .active_request import ActiveRequest
from .drafting import Drafting
from .evidence import Outlook, outlooks
from .proposal import Proposal, Question
from .proposing import group_drafts
from .step_plan import StepPlan

Item = TypeVar("Item")


# Not around the whole run: between steps the caller's code runs, perhaps in another thread.
@torch.no_grad()
def ask(
    plan: StepPlan,
    now: History,
    timers: Timers,
    most: int | None,
    failed: Callable[[ActiveRequest, Exception], None],
) -> list[Proposal | None] | None:
    """
    Let the drafters of a step's requests propose.

    Requests may share a drafter: it is called once, with budgets for their rows. So a row of the
    table is the same row for target and draft model.

    Args:
        plan: The step's plan. Its active rows include those in prefill, which a longer forward delays.

        now: The table's tokens so far, width 1.

        timers: The table's.

        most: The columns of a step's forward: a drafter that lacks more of a row's tokens catches up
            by as many, and drafts later. None for any number.

        failed: Told of each request whose part raised. What a shared drafter raises itself, all requests
            that share it have raised.

    Returns:
        The proposal of each request, None where no row can be drafted for; None if no request asks.
    """
    candidates = list(filter(None, (_candidate(request, now) for request in plan.requests)))
    going_on = [one for group in _by_policy(candidates) if not _pauses(group, failed) for one in group]
    if not going_on:
        return None
    questions = [
        question
        for group in _by_policy(_asked_for_outlooks(going_on, now, timers, failed))
        for question in _questions(group, len(plan.active), failed)
    ]
    proposals = {id(question.request): question.proposal for question in questions}
    drafting = [question for question in questions if question.proposal.allowed]
    for group in _grouped(drafting, lambda question: id(question.drafting.drafter)):
        with timers.phase("draft"):
            for question, answer in group_drafts(group, now, plan.alone, most, failed):
                proposals[id(question.request)] = answer
    return [proposals.get(id(request)) for request in plan.requests]


@attrs.define(eq=False)
class _Candidate:
    """A request that may draft in this step."""

    request: ActiveRequest
    drafting: Drafting
    rows: list[int]
    """Its rows that have their first token, and may get at least two others."""

    most: list[int] | None
    """The most draft tokens of each of *rows*; None for any number."""

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
    limit, most = request.run.most_new_tokens, None
    if limit is not None:
        room = _room(limit, rows, now.length[request.rows, 0].tolist(), now.prompt[request.rows].tolist())
        rows, most = list(room.keys()), list(room.values())
    return _Candidate(request, drafting, rows, most) if rows else None


def _room(
    limit: RowLimit, rows: Iterable[int], lengths: Sequence[int], prompts: Sequence[int]
) -> dict[int, int]:
    """
    Draft tokens that fit before the end of each of *rows*; rows without room are left out.

    Each step adds a token of the target's own behind those of the draft.
    """
    room = {row: limit(prompts[row], row) - (lengths[row] - prompts[row]) - 1 for row in rows}
    return {row: count for row, count in room.items() if count > 0}


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
        Question(
            one.request,
            one.drafting,
            Proposal(
                one.rows,
                _cut(islice(lengths, len(one.rows)), one.most),
                one.request.empty_draft,
                None if evidence is None else one.outlook,
            ),
        )
        for one in group
    ]


def _cut(lengths: Iterable[int], most: Sequence[int] | None) -> list[int]:
    return list(lengths) if most is None else list(map(min, lengths, most))


def _grouped(items: Sequence[Item], key: Callable[[Item], object]) -> list[list[Item]]:
    """*items* of equal *key* together, in the order of the first of each."""
    if len(items) < 2:
        return [list(items)] if items else []
    groups: dict[object, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
