"""The forwards of one step of the decoding loop, and what is counted of them."""

from collections.abc import Sequence

from ..feed_counts import FeedCounts
from ..history import History
from ..protocols import Draft
from ..results.statistics import Statistics
from ..results.timers import Timers
from ..scores import Scores
from ..token_feeder import Fed, TokenFeeder
from ..trees import tree_window
from .active_request import ActiveRequest
from .step_plan import StepPlan
from .windows import chain_window


def feed_step(
    plan: StepPlan,
    feeder: TokenFeeder,
    timers: Timers,
    now: History,
    draft: Draft,
    *,
    most: int | None,
    exact_width: bool,
    sample: bool,
) -> tuple[History, Fed]:
    """
    Feed the tokens and the *draft* of the active rows.

    Args:
        plan: The step's requests and rows.

        feeder: Feeds the decoder.

        timers: The table's; what is fed and reused is counted in their statistics.

        now: The table's tokens so far, width 1.

        draft: Of all rows of the table.

        most: Columns of the forward at most; None for any number.

        exact_width: Whether every token goes through one program.

        sample: Whether the device samples.

    Returns:
        The tokens before each scored column, and the result of the forward.
    """
    lengths = now.length[:, 0]
    begun = plan.begun = plan.begun or bool((lengths > now.prompt)[plan.active].any())
    before, copied = feeder.counts, list(feeder.copied)
    reused = _reused(plan.unfed, feeder, now) if plan.unfed else {}
    with timers.phase("target" if begun else "prefill"):
        seen, ends, need = now, lengths, plan.need
        if draft.parents is not None:
            seen = tree_window(now, draft)
            logits = feeder.feed_tree(now, ends, draft, need > 0)
            fed = Fed(Scores.of(logits), (need > 0).tolist(), all_ready=True)
        else:
            if draft.ids.shape[1]:
                seen = chain_window(now, draft)
                drafted = (draft.ids >= 0).sum(dim=1)
                ends, need = ends + drafted, need * (drafted + 1)
            fed = plan.feed(now, ends, need, most=most, exact_width=exact_width, sample=sample)
    _count_spent(timers.statistics, feeder.counts.since(before), begun)
    if plan.unfed:
        plan.unfed = []
        for request in plan.requests:
            request.fed = True
    if copied != feeder.copied:
        for row, (then, total) in enumerate(zip(copied, feeder.copied, strict=True)):
            reused[row] = reused.get(row, 0) + total - then
    if reused:
        _count_reused(plan.requests, timers, reused)
    return seen, fed


def _count_spent(statistics: Statistics, spent: FeedCounts, begun: bool) -> None:
    statistics.record_feed(spent, begun)
    if spent.row_seconds and begun:
        # For prompts that are fed while other rows decode.
        statistics.seconds["target"] -= spent.row_seconds
        statistics.seconds["prefill"] = statistics.seconds.get("prefill", 0.0) + spent.row_seconds


def _reused(rows: Sequence[int], feeder: TokenFeeder, now: History) -> dict[int, int]:
    """Tokens of each of *rows* that are in the cache and need not be fed, by row."""
    lengths = now.length[:, 0]
    missing = feeder.missing(now, lengths).tolist()
    return {row: int(lengths[row]) - max(missing[row], 1) for row in rows}


def _count_reused(requests: Sequence[ActiveRequest], timers: Timers, reused: dict[int, int]) -> None:
    timers.statistics.reused += sum(reused.values())
    for request in requests:
        if request.run.timers is not timers:
            own = range(request.rows.start, request.rows.stop)
            request.run.timers.statistics.reused += sum(reused.get(row, 0) for row in own)
