"""Requests that sample in one call, because they have one chain object and one sampler."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..history import History
from ..protocols import Draft
from ..sampling.one_thread import one_thread
from ..token_feeder import Fed
from .active_request import ActiveRequest
from .windows import columns_of


def mergeable(requests: Sequence[ActiveRequest]) -> list[list[ActiveRequest]]:
    """
    The groups of *requests*, of two and more, whose rows can be sampled together.

    Their chain and sampler are the same objects, and both say that a row's result does not depend on which
    row of the batch it is (:class:`~..optional_protocols.RowIndependent`). Seeds are in the random streams.
    """
    groups: dict[tuple[int, int], list[ActiveRequest]] = {}
    for request in requests:
        pipeline = request.run.pipeline
        if pipeline.row_independent:
            key = id(pipeline.processors), id(pipeline.sampler)
            groups.setdefault(key, []).append(request)
    return [group for group in groups.values() if len(group) > 1]


def sample_together(
    groups: Sequence[Sequence[ActiveRequest]],
    drafts: dict[int, Draft],
    seen: History,
    fed: Fed,
) -> dict[int, Tensor]:
    """
    The tokens of requests that are scored, sampled a group at a time.

    Args:
        groups: Those of :func:`mergeable`.

        drafts: The draft of each request, by its identity.

        seen: The tokens before each column of the table.

        fed: Its logits.

    Returns:
        By identity of the request, ids ``[rows, 1 + its longest draft]``. Requests of a group in which a part
        raised are left out: sampled by itself, each of them raises its own exception.
    """
    found: dict[int, Tensor] = {}
    for group in groups:
        scored = [one for one in group if not one.failed and one.active and fed.are_ready(one.table_rows())]
        if len(scored) < 2:
            continue
        scored.sort(key=lambda one: one.rows.start)
        columns = [1 + drafts[id(one)].ids.shape[1] for one in scored]
        sampled, of_rows = _places(scored, drafts)
        blocks = _blocks([one.rows for one in scored])
        window = seen.rows(_index(blocks))
        try:
            ids, _ = scored[0].run.pipeline(
                _rows_of(fed.logits[:, : max(columns)], blocks),
                window.at(window.length[:, : max(columns)]),
                sampled,
                of_rows if min(of_rows) < max(columns) else None,
            )
        except Exception:
            continue
        place = 0
        for one, width in zip(scored, columns, strict=True):
            found[id(one)] = ids[place : place + one.num_rows, :width]
            place += one.num_rows
    return found


def _places(
    requests: Sequence[ActiveRequest], drafts: dict[int, Draft]
) -> tuple[list[int] | None, list[int]]:
    """
    Of the rows of *requests*, one after the other: the places of those that go on, and each one's columns.

    None in place of the former if all do.
    """
    places: list[int] = []
    columns: list[int] = []
    for one in requests:
        places += [len(columns) + row for row in one.active]
        ids = drafts[id(one)].ids
        columns += columns_of(drafts[id(one)]) or [1 + ids.shape[1]] * one.num_rows
    return places if len(places) < len(columns) else None, columns


def _blocks(rows: Sequence[slice]) -> list[slice]:
    """Ascending *rows*, those that lie side by side as one."""
    blocks = [rows[0]]
    for each in rows[1:]:
        if each.start == blocks[-1].stop:
            blocks[-1] = slice(blocks[-1].start, each.stop)
        else:
            blocks.append(each)
    return blocks


def _index(blocks: Sequence[slice]) -> slice | Tensor:
    """The rows of *blocks*, as an index: a slice where that is possible, which copies nothing."""
    if len(blocks) == 1:
        return blocks[0]
    return torch.cat([torch.arange(block.start, block.stop) for block in blocks])


def _rows_of(logits: Tensor, blocks: Sequence[slice]) -> Tensor:
    """The rows of *blocks*: joined by copies of whole blocks, since an index copies number by number."""
    if len(blocks) == 1:
        return logits[blocks[0]]
    with one_thread(logits.numel()):
        return torch.cat([logits[block] for block in blocks])
