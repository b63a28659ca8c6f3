"""Checks of a drafter's answer."""

import torch
from torch import Tensor

from ..protocols import Draft


def check_draft(draft: Draft, rows: int, vocab: int) -> None:
    """
    Check the types and shapes of a drafter's answer.

    Raises:
        TypeError: It is no draft of int64 ids.

        ValueError: A wrong shape.
    """
    ids = draft.ids if isinstance(draft, Draft) else None
    rule = f"a drafter must propose a Draft of int64 ids [{rows}, k]"
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64:
        raise TypeError(f"{rule}: got {ids.dtype if isinstance(ids, Tensor) else draft!r}")
    if ids.ndim != 2 or len(ids) != rows:
        raise ValueError(f"{rule}: got the shape {list(ids.shape)}")
    scores, parents = draft.scores, draft.parents
    if scores is not None and scores.shape != (*ids.shape, vocab):
        raise ValueError(f"{rule} and scores [{rows}, k, {vocab}]: got the shape {list(scores.shape)}")
    if parents is not None and not (
        isinstance(parents, Tensor)
        and parents.dtype == torch.int64
        and parents.shape == ids.shape
        and bool(((parents >= -1) & (parents < torch.arange(ids.shape[1]))).all())
    ):
        raise ValueError(
            f"{rule} and parents, -1 or the index of an earlier draft token each: got {parents!r}"
        )
