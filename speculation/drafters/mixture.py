"""Several drafters, and in each round the one that pays."""

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import ChecksTarget, GivesEvidence, tree_nodes
from ...decoding.protocols import DecoderShape, Draft, Drafter, SamplesTokens
from ...decoding.validation import as_real
from ..verification.point_mass import point_mass
from .mixture_experience import Experience, Guess, expected
from .mixture_pace import Pace
from .running_texts import RunningTexts

Ints = NDArray[np.int64]
Kind = tuple[int, int]
"""The drafter's number, and the order of magnitude of its evidence; 0 if it gives none."""

_UNTRIED = 0.8
"""How often a guess of a kind that nobody has seen is taken to be right: often enough to be tried."""


@attrs.define(eq=False)
class _Row:
    """One row as it stood when the drafters were last asked."""

    taken: Ints = attrs.field(factory=lambda: np.empty(0, dtype=np.int64))
    guesses: list[Guess] = attrs.field(factory=list)
    """Of all drafters that said something, whether it was used or not."""

    experience: Experience = attrs.field(factory=Experience)
    left: float | None = None
    """When they had answered, in seconds of ``time.perf_counter``."""


@attrs.define(eq=False)
class _Learned:
    """What past rounds tell, of all rows and generators together. A copy starts anew."""

    pace: Pace
    experience: Experience = attrs.field(factory=Experience)
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Learned, (Pace(self.pace.costs),)

    def hear(self, rows: Sequence[_Row], ids: Sequence[Ints], now: float) -> None:
        """Compare what was guessed in *rows* with what *ids* say *now*, in seconds, and forget it."""
        self.experience.fade()
        rests = []
        for row, tokens in zip(rows, ids, strict=True):
            said = tokens[len(row.taken) :].tolist()
            row.experience.fade()
            if said and row.left is not None:
                for guess in row.guesses:
                    right, wrong = guess.against(said)
                    row.experience.learn(guess.kind, right, wrong)
                    self.experience.learn(guess.kind, right, wrong)
                self.pace.gained(len(said))
                rests.append(now - row.left)
            # A copy: the loop goes on writing into its history.
            row.taken, row.guesses, row.left = tokens.copy(), [], None
        if rests:
            self.pace.rested(min(rests))

    def pick(
        self,
        rows: Sequence[_Row],
        kinds: Sequence[dict[int, Kind]],
        budgets: Sequence[int],
        costs: list[float],
    ) -> list[int]:
        """
        The drafter that pays in each of *rows*.

        Args:
            rows: Those that may be guessed.

            kinds: What the drafters have to offer in each of them.

            budgets: How many tokens ahead each may be guessed.

            costs: What it costs to ask each drafter, in seconds or the unit of ``pace``.

        Returns:
            Their numbers; -1 for none.
        """
        gains = np.zeros((len(rows), len(costs)))
        for at, (row, offered, budget) in enumerate(zip(rows, kinds, budgets, strict=True)):
            for number, kind in offered.items():
                overall = self.experience.rate(kind, _UNTRIED)
                gains[at, number] = expected(row.experience.rate(kind, overall), budget)
        price = self.pace.price() * len(rows)
        picked = assign(gains, [price * cost for cost in costs])
        self.pace.spent(sum(costs[number] for number in {*picked} - {-1}))
        return picked


def assign(gains: NDArray[np.float64], prices: Sequence[float]) -> list[int]:
    """
    Which drafter to take in each row, so that all gains less the prices of those taken are most.

    Args:
        gains: Tokens, ``[rows, drafters]``, >= 0.

        prices: Of asking each of them, for however many rows; in tokens, >= 0.

    Returns:
        Their numbers, -1 where there is nothing to gain. Of equal ones the first, of equal sets
        the smallest.
    """
    free = [number for number, price in enumerate(prices) if price == 0]
    paid = [number for number, price in enumerate(prices) if price > 0]
    most, best = 0.0, [-1] * len(gains)
    for size in range(len(paid) + 1):
        for some in itertools.combinations(paid, size):
            taken = sorted([*free, *some])
            among = gains[:, taken]
            worth = among.max(axis=1, initial=0.0).sum() - sum(prices[number] for number in some)
            if worth > most:
                most = worth
                best = [taken[row.argmax()] if row.max() > 0 else -1 for row in among]
    return best


def _as_tuple(drafters: Any) -> Any:
    return tuple(drafters) if isinstance(drafters, Iterable) else drafters


def _as_costs(costs: Any) -> Any:
    return tuple(map(as_real, costs)) if isinstance(costs, Iterable) else costs


def _check_drafters(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    rule = f"'{attribute.name}' must be drafters, each with propose(history, budget, choose)"
    if isinstance(value, tuple) and not value:
        raise ValueError(f"{rule}: got none")
    for drafter in value if isinstance(value, tuple) else (None,):
        if isinstance(drafter, type) or not isinstance(drafter, Drafter):
            raise TypeError(f"{rule}: got {value!r}")


@attrs.frozen(eq=False)
class Mixture:
    """
    Let the drafter guess that promises most, row by row and round by round.

    A drafter is worth the guesses that are expected to stand, by how its guesses have fared in
    the row and elsewhere, less what the target could have done in the time that it takes. Rows
    that choose a draft model share its forwards, so it is asked if they gain enough together;
    the others are idle rows to it. If nothing pays, nothing is guessed. What is little known is
    tried now and then.

    A drafter whose guess is a function of the history and costs next to nothing, as a lookup's,
    may say so by a method ``evidence(history, budget)``: how much speaks for its guess in each
    row, ``[batch]`` int64, such as the length of a match; 0 where it has none. It is asked in
    every round, and learns from the guesses that were not used as well, those with evidence of
    one order of magnitude (in powers of 2) together.

    Nothing is decided by looking at a guess that was drawn, so the distribution of a text is the target's
    under any verification. Under agreement so is the text itself; under others which text of
    that distribution it is may depend on the clock, unless *costs* are given.

    What is learned belongs to the mixture, in all generators that share it; a wrong opinion
    costs time, never correctness.
    """

    drafters: tuple[Drafter, ...] = attrs.field(converter=_as_tuple, validator=_check_drafters)
    """A handful. Of equal promise the earlier one is taken."""

    costs: tuple[float, ...] | None = attrs.field(default=None, converter=_as_costs)
    """
    What a token ahead costs each of them, in forwards of the target; measured if not given. Of
    those that give evidence it does not count: they are asked in any case.
    """

    _giving: dict[int, GivesEvidence] = attrs.field(init=False, repr=False)
    """The drafters that give evidence, by their numbers."""

    _learned: _Learned = attrs.field(init=False, repr=False)
    _rows: RunningTexts[_Row] = attrs.field(factory=RunningTexts, init=False, repr=False)

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

    @_learned.default
    def _nothing_yet(self) -> _Learned:
        return _Learned(Pace(self.costs))

    @property
    def tree_nodes(self) -> int | None:
        """How many guesses the largest of their trees has; None if there is none."""
        return max((tree_nodes(drafter) or 0 for drafter in self.drafters), default=0) or None

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` unless all of them can draft for *target*."""
        for drafter in self.drafters:
            if isinstance(drafter, ChecksTarget):
                drafter.check_target(target)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """Guess up to *budget* tokens ``[batch]`` of each row."""
        now, asked, learned = time.perf_counter(), budget.nonzero().flatten().tolist(), self._learned
        if not asked:
            return Draft(budget.new_empty(len(budget), 0))
        ids, budgets = [history.before(row, 0).numpy() for row in asked], budget[asked].tolist()
        rows = [self._rows.take(tokens) or _Row() for tokens in ids]
        # What a draft model needs for a prompt is not what it costs round by round.
        usual = all(row.left is not None for row in rows)
        try:
            with learned.lock:
                learned.hear(rows, ids, now)
            evidence = self._evidence(history, budget)
            kinds = [self._kinds(evidence, row) for row in asked]
            with learned.lock:
                costs = [0.0 if n in evidence else learned.pace.cost(n) for n in range(len(self.drafters))]
                picked = learned.pick(rows, kinds, budgets, [cost * max(budgets) for cost in costs])
            picks = torch.full_like(budget, -1)
            picks[asked] = torch.tensor(picked)
            drafts = {n: self.drafters[n].propose(history, budget, sample) for n in evidence}
            for number in sorted({*picked} - {*evidence, -1}):
                own = torch.where(picks == number, budget, 0)
                drafts[number] = self._draft(number, history, own, sample, usual)
            left = time.perf_counter()
            for at, row in enumerate(asked):
                heard = [n for n in kinds[at] if n in evidence or n == picked[at]]
                rows[at].guesses = [_guess(kinds[at][n], drafts[n], row, budgets[at]) for n in heard]
                rows[at].left = left
        finally:
            self._rows.put(rows)
        return _merged(picks, drafts)

    def _evidence(self, history: History, budget: Tensor) -> dict[int, list[int]]:
        """What the drafters that give evidence say of each row, by their numbers."""
        return {n: drafter.evidence(history, budget).tolist() for n, drafter in self._giving.items()}

    def _kinds(self, evidence: dict[int, list[int]], row: int) -> dict[int, Kind]:
        """What each drafter that may have a guess in *row* has to offer, by its number."""
        amounts = {number: said[row] for number, said in evidence.items()}
        offered = [number for number in range(len(self.drafters)) if amounts.get(number, 1)]
        return {number: (number, amounts.get(number, 0).bit_length()) for number in offered}

    def _draft(
        self, number: int, history: History, budget: Tensor, sample: SamplesTokens, usual: bool
    ) -> Draft:
        """Ask one drafter, and note how long it took where that is *usual*."""
        before = time.perf_counter()
        draft = self.drafters[number].propose(history, budget, sample)
        seconds = time.perf_counter() - before
        if usual:
            with self._learned.lock:
                self._learned.pace.drafted(number, seconds, int(budget.max()))
        return draft


def _guess(kind: Kind, draft: Draft, row: int, budget: int) -> Guess:
    parents = None if draft.parents is None else draft.parents[row].tolist()
    return Guess(kind, draft.ids[row].tolist(), budget, parents)


def _merged(picks: Tensor, drafts: dict[int, Draft]) -> Draft:
    """One draft of each row's picked one, ``[batch]``, by number; -1 for none."""
    used = {number: draft for number, draft in drafts.items() if (picks == number).any()}
    width = max((draft.ids.shape[1] for draft in used.values()), default=0)
    ids = picks.new_full((len(picks), width), -1)
    for number, draft in used.items():
        ids[picks == number, : draft.ids.shape[1]] = draft.ids[picks == number]
    return Draft(ids, _merged_scores(ids, picks, used), _merged_parents(ids, picks, used))


def _merged_scores(ids: Tensor, picks: Tensor, drafts: dict[int, Draft]) -> Tensor | None:
    """The scores of those that have some, and those of certainty for the others."""
    merged = None
    for number, draft in drafts.items():
        if draft.scores is not None:
            merged = point_mass(ids, draft.scores) if merged is None else merged
            merged[picks == number, : draft.ids.shape[1]] = draft.scores[picks == number]
    return merged


def _merged_parents(ids: Tensor, picks: Tensor, drafts: dict[int, Draft]) -> Tensor | None:
    """The parents of those that are trees, and a chain's for the others."""
    merged = None
    for number, draft in drafts.items():
        if draft.parents is not None:
            merged = torch.arange(-1, ids.shape[1] - 1).repeat(len(ids), 1) if merged is None else merged
            merged[picks == number, : draft.ids.shape[1]] = draft.parents[picks == number]
    return merged
