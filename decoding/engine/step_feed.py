"""The forwards of one step of the decoding loop, and what is counted of them."""

from collections.abc import Sequence

from ..history import History
from ..protocols import Draft
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
    statistics, lengths = timers.statistics, now.length[:, 0]
    begun = plan.begun = plan.begun or bool((lengths > now.prompt)[plan.active].any())
    before, copied = feeder.counts, list(feeder.copied)
    reused = _reused(plan.unfed, feeder, now) if plan.unfed else {}
    with timers.phase("target" if begun else "prefill"):
        seen, fed = _fed(plan, feeder, now, draft, most, exact_width, sample)
    spent = feeder.counts.since(before)
    statistics.record_feed(spent, begun)
    if spent.row_seconds and begun:
        # For prompts that are fed while other rows decode.
        statistics.seconds["target"] -= spent.row_seconds
        statistics.seconds["prefill"] = statistics.seconds.get("prefill", 0.0) + spent.row_seconds
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


def _fed(
    plan: StepPlan,
    feeder: TokenFeeder,
    now: History,
    draft: Draft,
    most: int | None,
    exact_width: bool,
    sample: bool,
) -> tuple[History, Fed]:
    """The tokens before each scored column, and the result of the forward."""
    seen, ends, need = now, now.length[:, 0], plan.need
    if draft.parents is not None:
        logits = feeder.feed_tree(now, ends, draft, need > 0)
        return tree_window(now, draft), Fed(Scores.of(logits), (need > 0).tolist(), all_ready=True)
    if draft.ids.shape[1]:
        seen = chain_window(now, draft)
        drafted = (draft.ids >= 0).sum(dim=1)
        ends, need = ends + drafted, need * (drafted + 1)
    return seen, plan.feed(now, ends, need, most=most, exact_width=exact_width, sample=sample)


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
