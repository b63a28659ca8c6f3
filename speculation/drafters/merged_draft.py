"""Merging of several drafters' drafts into one of the batch."""

import torch
from torch import Tensor

from ...decoding.protocols import Draft
from ..verification.point_mass import point_mass


def merged_draft(picks: Tensor, drafts: dict[int, Draft]) -> Draft:
    """
    Take each row from one of *drafts*.

    Args:
        picks: Key of each row's draft, ``[batch]``; -1 for none.

        drafts: Drafts of the whole batch, by key.
    """
    used = {number: draft for number, draft in drafts.items() if (picks == number).any()}
    width = max((draft.ids.shape[1] for draft in used.values()), default=0)
    ids = picks.new_full((len(picks), width), -1)
    for number, draft in used.items():
        ids[picks == number, : draft.ids.shape[1]] = draft.ids[picks == number]
    return Draft(ids, _merged_scores(ids, picks, used), _merged_parents(ids, picks, used))


def _merged_scores(ids: Tensor, picks: Tensor, drafts: dict[int, Draft]) -> Tensor | None:
    """Scores, those of a point mass for drafts without; None if no draft has any."""
    merged = None
    for number, draft in drafts.items():
        if draft.scores is not None:
            merged = point_mass(ids, draft.scores) if merged is None else merged
            merged[picks == number, : draft.ids.shape[1]] = draft.scores[picks == number]
    return merged


def _merged_parents(ids: Tensor, picks: Tensor, drafts: dict[int, Draft]) -> Tensor | None:
    """Parents, those of a chain for drafts without; None if no draft is a tree."""
    merged = None
    for number, draft in drafts.items():
        if draft.parents is not None:
            merged = torch.arange(-1, ids.shape[1] - 1).repeat(len(ids), 1) if merged is None else merged
            merged[picks == number, : draft.ids.shape[1]] = draft.parents[picks == number]
    return merged
