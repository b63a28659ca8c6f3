"""What draft length policies learn from a step."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs

from ..protocols import Draft, DraftLength, SpeculationStep
from ..trees import tokens_ahead
from .proposal import Proposal
from .run import Accepted
from .step_plan import StepPlan


@attrs.define(eq=False)
class StepOutcome:
    """What a draft length policy is to learn from one step, of all requests that share it."""

    policy: DraftLength
    bystanders: int
    """Other rows that a longer forward delays: of other requests, or in prefill."""

    allowed: int = 0
    drafted: list[int] = attrs.field(factory=list)
    accepted: list[int] = attrs.field(factory=list)
    evidence: list[int] | None = None
    foreseen: list[bool] | None = None
    catching_up: list[bool] = attrs.field(factory=list)

    def add(self, proposal: Proposal, answer: Accepted) -> None:
        """
        Add the rows of one request.

        Args:
            proposal: What was drafted for them.

            answer: What became of it.
        """
        ahead = (
            tokens_ahead(proposal.draft).tolist() if proposal.draft.ids.shape[1] else [0] * len(answer.added)
        )
        self.allowed = max(self.allowed, proposal.allowed)
        for row in proposal.rows:
            added = answer.added[row]
            # The last of them is the target's. Draft tokens that a stop has cut off gained nothing.
            gained = max(added - 1, 0)
            self.drafted.append(ahead[row] if added > answer.num_accepted[row] else gained)
            self.accepted.append(gained)
        self.catching_up += proposal.catching_up or (False,) * len(proposal.rows)
        if proposal.outlook is None:
            return
        self.evidence = [*(self.evidence or []), *proposal.outlook.evidence]
        if proposal.outlook.first_tokens is not None:
            tokens = {output.row: output.ids for output in answer.outputs}
            firsts = zip(proposal.rows, proposal.outlook.first_tokens, strict=True)
            begun = [tokens[row][:1] == (first,) for row, first in firsts]
            self.foreseen = [*(self.foreseen or []), *begun]

    def learn(self, longest: int, total: int, seconds: Mapping[str, float]) -> None:
        """
        Report it to the policy.

        Args:
            longest: Tokens of the longest draft of the step.

            total: Tokens of all its drafts.

            seconds: Times of the step, by the names of :class:`~..protocols.SpeculationStep`.
        """
        drafted, accepted, evidence, foreseen = self.drafted, self.accepted, None, None
        if self.evidence is not None:
            idle = [0] * self.bystanders
            drafted, accepted, evidence = drafted + idle, accepted + idle, (*self.evidence, *idle)
            # Drafters that share a policy may tell different things.
            if self.foreseen is not None and len(self.foreseen) == len(self.evidence):
                foreseen = (*self.foreseen, *map(bool, idle))
        self.policy.learn(
            SpeculationStep(
                self.allowed,
                tuple(drafted),
                tuple(accepted),
                evidence=evidence,
                foreseen=foreseen,
                longest=longest,
                total=total,
                delayed=self.bystanders if self.evidence is None else 0,
                catching_up=self._caught_up(),
                **seconds,
            )
        )

    def _caught_up(self) -> tuple[bool, ...] | None:
        if not any(self.catching_up):
            return None
        idle = (False,) * (0 if self.evidence is None else self.bystanders)
        return (*self.catching_up, *idle)


def _longest(draft: Draft) -> int:
    """The draft length of the longest row, of a tree that of its longest branch."""
    columns = draft.ids.shape[1]
    return columns if draft.parents is None or not columns else int(tokens_ahead(draft).max())


def reports(
    plan: StepPlan,
    proposals: Sequence[Proposal | None],
    accepted: Sequence[Accepted | None],
    seconds: Mapping[str, float],
) -> dict[int, Callable[[], None]]:
    """
    Functions that report a step, one for each draft length policy, by the number of its last request.

    Args:
        plan: The step's requests.

        proposals: That of each request; None if it has none.

        accepted: What each accepted; None if its rows were not scored, or it failed.

        seconds: Times of the step, by the names of :class:`~..protocols.SpeculationStep`.
    """
    found: dict[int, tuple[int, StepOutcome]] = {}
    for number, (request, proposal, answer) in enumerate(
        zip(plan.requests, proposals, accepted, strict=True)
    ):
        drafting = request.run.drafting
        if drafting is None or isinstance(drafting.length, int) or proposal is None or answer is None:
            continue
        _, outcome = found.get(id(drafting.length), (0, StepOutcome(drafting.length, len(plan.active))))
        outcome.add(proposal, answer)
        outcome.bystanders -= len(proposal.rows)
        found[id(drafting.length)] = number, outcome
    if not found:
        return {}
    drafts = [one.draft for one in proposals if one is not None]
    longest = max(map(_longest, drafts))
    total = sum(int((draft.ids.numpy() >= 0).sum()) for draft in drafts) if longest else 0
    return {number: partial(outcome.learn, longest, total, seconds) for number, outcome in found.values()}
