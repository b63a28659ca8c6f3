"""Mixture of drafters: the one with the highest expected gain, per row and step."""

import time
from typing import Any

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import ChecksTarget, GivesEvidence, decides_by_time, tree_nodes
from ...decoding.protocols import DecoderShape, Draft, Drafter, SamplesTokens
from ...decoding.validation import as_real, is_iterable
from .merged_draft import merged_draft
from .mixture_acceptance import PastDraft
from .mixture_pace import Pace
from .mixture_selection import DrafterSelector, Kind, MixtureRow
from .running_texts import RunningTexts


def _as_tuple(drafters: Any) -> Any:
    return tuple(drafters) if is_iterable(drafters) else drafters


def _as_costs(costs: Any) -> Any:
    return tuple(map(as_real, costs)) if is_iterable(costs) else costs


def _check_drafters(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    rule = f"'{attribute.name}' must be drafters, each with propose(history, budget, sample)"
    if isinstance(value, tuple) and not value:
        raise ValueError(f"{rule}: got none")
    for drafter in value if isinstance(value, tuple) else (None,):
        if isinstance(drafter, type) or not isinstance(drafter, Drafter):
            raise TypeError(f"{rule}: got {value!r}")


@attrs.frozen(eq=False)
class Mixture:
    """
    Draft with the most promising of several drafters, per row and speculation step.

    A drafter's value is the expected number of accepted tokens, by its acceptance in the row and
    overall, minus what the target could generate in the time that it takes. Rows that select a
    draft model share its forwards, so it runs if they gain enough together; the other rows are
    idle in it. If no drafter pays, there is no draft. Drafters with few observations are tried now
    and then.

    A cheap drafter whose draft is a function of the history, such as a lookup, may declare it by a
    method ``evidence(history, budget)``: the strength of its draft in each row, ``[batch]`` int64,
    which grows with the match's length; 0 where it has none. It runs in every step, and its unused drafts
    count too. Acceptance is recorded per power of 2 of the evidence.

    No decision depends on a sampled draft token, so the distribution of the text is the target's
    under any verification. With exact match so is the text itself; under others, which text of that
    distribution it is may depend on timing, unless *costs* are given.

    Statistics are shared by all generators that use the mixture; they affect speed, not
    correctness.
    """

    drafters: tuple[Drafter, ...] = attrs.field(converter=_as_tuple, validator=_check_drafters)
    """A few drafters; ties go to the earlier one."""

    costs: tuple[float, ...] | None = attrs.field(default=None, converter=_as_costs)
    """
    Cost of each drafter per draft token, in forwards of the target; measured if None. Ignored for
    drafters with evidence, which always run. Required for others where the decoder is divided over processes,
    whose times differ.
    """

    _giving: dict[int, GivesEvidence] = attrs.field(init=False, repr=False)
    """Drafters with evidence, by index."""

    _selector: DrafterSelector = attrs.field(init=False, repr=False)
    _rows: RunningTexts[MixtureRow] = attrs.field(factory=RunningTexts, init=False, repr=False)

    @costs.validator
    def _(self, attribute: object, value: Any) -> None:
        if value is None:
            return
        if not isinstance(value, tuple):
            raise TypeError(f"'costs' must be None or numbers, one a drafter: got {value!r}")
        if len(value) != len(self.drafters):
            raise ValueError(
                f"'costs' must be one a drafter: got {len(value)} for {len(self.drafters)} drafters"
            )
        for cost in value:
            if not isinstance(cost, float):
                raise TypeError(f"'costs' must be numbers: got {cost!r}")
            if not 0 <= cost < float("inf"):
                raise ValueError(f"'costs' must be >= 0: got {cost}")

    def __attrs_post_init__(self) -> None:
        """Look which drafters give evidence, now that they are known to be some."""
        giving = {n: one for n, one in enumerate(self.drafters) if isinstance(one, GivesEvidence)}
        object.__setattr__(self, "_giving", giving)

    @_selector.default
    def _new_selector(self) -> DrafterSelector:
        return DrafterSelector(Pace(self.costs))

    @property
    def tree_nodes(self) -> int | None:
        """Maximum number of draft tokens in a tree of any drafter; None if none drafts trees."""
        return max((tree_nodes(drafter) or 0 for drafter in self.drafters), default=0) or None

    @property
    def decides_by_time(self) -> bool:
        """Whether a drafter's cost is measured, or a drafter decides by time itself."""
        measured = self.costs is None and len(self._giving) < len(self.drafters)
        return measured or any(map(decides_by_time, self.drafters))

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` unless all drafters can draft for *target*."""
        for drafter in self.drafters:
            if isinstance(drafter, ChecksTarget):
                drafter.check_target(target)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """Propose up to *budget* tokens ``[batch]`` for each row."""
        now, active, selector = time.perf_counter(), budget.nonzero().flatten().tolist(), self._selector
        if not active:
            return Draft(budget.new_empty(len(budget), 0))
        ids, budgets = [history.before(row, 0).numpy() for row in active], budget[active].tolist()
        rows = [self._rows.take(tokens) or MixtureRow() for tokens in ids]
        for row, prompt in zip(rows, history.prompt[active].tolist(), strict=True):
            if len(row.tokens) < prompt:
                # A text that goes on in a prompt: its new tokens were not generated.
                row.drafts, row.drafted_at = [], None
        # A draft model's prefill of a prompt is not representative of its cost per step.
        timed = all(row.drafted_at is not None for row in rows)
        try:
            with selector.lock:
                selector.learn(rows, ids, now)
            evidence = self._evidence(history, budget)
            kinds = [self._kinds(evidence, row) for row in active]
            with selector.lock:
                costs = [0.0 if n in evidence else selector.pace.cost(n) for n in range(len(self.drafters))]
                picked = selector.pick(rows, kinds, budgets, [cost * max(budgets) for cost in costs])
            picks = torch.full_like(budget, -1)
            picks[active] = torch.tensor(picked)
            drafts = {n: self.drafters[n].propose(history, budget, sample) for n in evidence}
            for number in sorted({*picked} - {*evidence, -1}):
                own = torch.where(picks == number, budget, 0)
                drafts[number] = self._draft(number, history, own, sample, timed)
            drafted_at = time.perf_counter()
            for at, row in enumerate(active):
                heard = [n for n in kinds[at] if n in evidence or n == picked[at]]
                rows[at].drafts = [_past_draft(kinds[at][n], drafts[n], row, budgets[at]) for n in heard]
                rows[at].drafted_at = drafted_at
        finally:
            self._rows.put(rows, len(budget))
        return merged_draft(picks, drafts)

    def _evidence(self, history: History, budget: Tensor) -> dict[int, list[int]]:
        """Evidence of each row, by drafter."""
        return {n: drafter.evidence(history, budget).tolist() for n, drafter in self._giving.items()}

    def _kinds(self, evidence: dict[int, list[int]], row: int) -> dict[int, Kind]:
        """Kind of the draft in *row*, by drafter that may have one."""
        amounts = {number: generated[row] for number, generated in evidence.items()}
        available = [number for number in range(len(self.drafters)) if amounts.get(number, 1)]
        return {number: (number, amounts.get(number, 0).bit_length()) for number in available}

    def _draft(
        self, number: int, history: History, budget: Tensor, sample: SamplesTokens, timed: bool
    ) -> Draft:
        """Run one drafter, and record its time if *timed*."""
        before = time.perf_counter()
        draft = self.drafters[number].propose(history, budget, sample)
        seconds = time.perf_counter() - before
        if timed:
            with self._selector.lock:
                self._selector.pace.drafted(number, seconds, int(budget.max()))
        return draft


def _past_draft(kind: Kind, draft: Draft, row: int, budget: int) -> PastDraft:
    parents = None if draft.parents is None else draft.parents[row].tolist()
    return PastDraft(kind, draft.ids[row].tolist(), budget, parents)
