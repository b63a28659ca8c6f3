"""What is constant between the steps of a decoding loop."""

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from ..cache.slots import Slots
from ..token_feeder import Fed, TokenFeeder
from .active_request import ActiveRequest
from .merged_sampling import mergeable
from .overlap import Overlap


@attrs.define(eq=False)
class StepPlan:
    """What is constant between steps, until a request joins, pauses, leaves or fails, or a row ends."""

    requests: list[ActiveRequest]
    """Those that take part in the step."""

    active: list[int]
    """Numbers of their active rows in the table."""

    need: Tensor
    """Columns to score without a draft, ``[rows]``: 1 in active rows, otherwise 0."""

    alone: bool
    """Whether one request has all rows of the table."""

    on_device: bool
    """Whether the device can sample for all of them."""

    may_draft: bool
    """Whether a request has a drafter."""

    feed: Callable[..., Fed]
    """:meth:`~..token_feeder.TokenFeeder.feed`, or that of :class:`.overlap.Overlap`."""

    merged: list[list[ActiveRequest]]
    """Groups of requests that may be sampled in one call."""

    unfed: list[int]
    """Active rows of requests that have not been fed yet."""

    begun: bool = False
    """Whether a row has a new token; until then, forwards count as prefill."""


def plan_step(
    requests: Sequence[ActiveRequest],
    rows: int,
    feeder: TokenFeeder,
    overlap: Overlap | None,
    exact_width: bool,
) -> StepPlan:
    """
    Plan the steps of a table.

    Args:
        requests: All that have joined.

        rows: The number of rows of the table.

        feeder: Feeds the decoder.

        overlap: Feeds requests that run ahead; None if the decoder cannot.

        exact_width: Whether one program feeds all tokens.
    """
    taking = [one for one in requests if one.active and not one.paused and not one.failed]
    active = [row for request in taking for row in request.table_rows()]
    need = torch.zeros(rows, dtype=torch.int64)
    need[active] = 1
    alone = len(requests) == 1 and requests[0].num_rows == rows
    on_device = (alone or _device_may_be_shared(feeder, exact_width)) and all(
        request.run.on_device and (alone or request.run.pipeline.row_independent) for request in taking
    )
    # The program that samples is another one: what the other has fed would be fed again at each change.
    on_device = on_device and not (exact_width and any(one.run.may_leave_device for one in taking))
    may_draft = any(request.run.drafting is not None for request in taking)
    runs_ahead = on_device and all(request.runs_ahead for request in taking)
    feed = overlap.feed if overlap is not None and runs_ahead else feeder.feed
    unfed = [row for request in taking if not request.fed for row in request.table_rows()]
    merged = [] if alone else mergeable(taking)
    return StepPlan(taking, active, need, alone, on_device, may_draft, feed, merged, unfed)


def _device_may_be_shared(feeder: TokenFeeder, exact_width: bool) -> bool:
    """Whether the device may sample for several requests, so that which place samples may change."""
    # While one request has another chain, the host samples for all, and it rounds differently than the
    # device. The texts of a bit-exact decoder, otherwise independent of neighbours, would depend on them.
    # The logits of such a decoder are in host memory anyway.
    exact = isinstance(feeder, Slots) and feeder.bit_exact
    # With one program for all tokens, sampling must not change between host and device either.
    return not exact and not exact_width
