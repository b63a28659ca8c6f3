"""Sampling in a table whose rows belong to several requests."""

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import attrs
import torch
from torch import Tensor

from ..history import History
from ..protocols import SamplesTokens
from ..scores import Scores

P = ParamSpec("P")
T = TypeVar("T")


class RaisedInRowsError(Exception):
    """A part of one of the requests raised."""

    def __init__(self, rows: slice, error: Exception) -> None:
        super().__init__(rows, error)
        self.rows, self.error = rows, error


def in_rows(rows: slice, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """
    The result of a part of the request that has *rows*.

    Raises:
        RaisedInRowsError: The part raised.
    """
    try:
        return call(*args, **options)
    except Exception as error:
        raise RaisedInRowsError(rows, error) from error


@attrs.frozen(eq=False)
class SamplesByRow:
    """Sample with each request's pipeline in its own rows; other rows get -1 and scores of ``-inf``."""

    pipelines: Sequence[tuple[slice, SamplesTokens]]
    """The rows of each request, and its pipeline."""

    @property
    def draft_scores(self) -> bool:
        """Whether a request needs the scores of its draft."""
        return any(pipeline.draft_scores for _, pipeline in self.pipelines)

    def __call__(
        self, logits: Tensor, history: History, sampled: Sequence[int] | None = None
    ) -> tuple[Tensor, Scores]:
        """
        Raw logits ``[rows, width, vocab]`` to ids ``[rows, width]`` and the processed scores.

        Requests without a row among the *sampled* ones, None for all, are left out.
        """
        ids = torch.full(logits.shape[:2], -1)
        processed = []
        for rows, pipeline in self.pipelines:
            if sampled is not None and not any(rows.start <= row < rows.stop for row in sampled):
                continue
            ids[rows], scores = in_rows(rows, pipeline, logits[rows], history.rows(rows))
            processed.append((rows, scores))
        return ids, Scores(lambda: _together(processed, logits))

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """Raw logits to the *n* top choices, ``[rows, width, n]``."""
        ids = torch.full((*logits.shape[:2], n), -1)
        for rows, pipeline in self.pipelines:
            ids[rows] = in_rows(rows, pipeline.top_choices, logits[rows], history.rows(rows), n)
        return ids


def _together(processed: Sequence[tuple[slice, Scores]], like: Tensor) -> Tensor:
    whole = torch.full(like.shape, -torch.inf)
    for rows, scores in processed:
        whole[rows] = scores.logits
    return whole
