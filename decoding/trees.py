"""
Token trees: several continuations of a text, scored in one forward.

As arrays, a tree is *ids* ``[rows, width]``, -1 for the padding behind a row's tokens, and *parents*
``[rows, width]``: for each column the column before it, smaller than its own number, or -1 for
none. Parents under padding are ignored. A :class:`~.protocols.Draft` with parents is a tree of draft
tokens; its rows may have gaps.
"""

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .history import History
from .protocols import Draft
from .scores import Scores

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def depths(ids: Ints, parents: Ints) -> Ints:
    """The number of ancestors of each column, ``[rows, width]``; 0 under padding."""
    depth = np.zeros_like(ids)
    for row, row_parents in enumerate(_parent_lists(ids, parents)):
        found: list[int] = []
        for parent in row_parents:
            found.append(found[parent] + 1 if parent >= 0 else 0)
        depth[row, : len(found)] = found
    return depth


def paths(ids: Ints, parents: Ints) -> Bools:
    """``[rows, width, width]``: the ancestors of each column and itself; itself alone under padding."""
    path = np.repeat(np.eye(ids.shape[1], dtype=bool)[None], len(ids), axis=0)
    for found, row_parents in zip(path, _parent_lists(ids, parents), strict=True):
        for column, parent in enumerate(row_parents):
            if parent >= 0:
                found[column] |= found[parent]
    return path


def first_branch(ids: Ints, parents: Ints) -> Bools:
    """``[rows, width]``: the first column, its first child, that one's first child, and so on."""
    branch = np.zeros(ids.shape, dtype=bool)
    for row, row_parents in enumerate(_parent_lists(ids, parents)):
        tip = -1
        for column, parent in enumerate(row_parents):
            # The first child becomes the tip, so later siblings no longer match.
            if parent == tip:
                branch[row, column] = True
                tip = column
    return branch


def _parent_lists(ids: Ints, parents: Ints) -> list[list[int]]:
    """The parents of each row's tokens as lists, which are faster than arrays for small trees."""
    counts = (ids >= 0).sum(axis=1).tolist()
    return [row[:count] for row, count in zip(parents.tolist(), counts, strict=True)]


def draft_depths(draft: Draft) -> Tensor:
    """How many tokens ahead each draft token of a tree is, ``[batch, n]``; 0 where there is none."""
    # A draft may have gaps, so every column counts as a token here.
    steps = torch.from_numpy(depths(torch.zeros_like(draft.ids).numpy(), parents_of(draft).numpy()))
    return (steps + 1).masked_fill(draft.ids < 0, 0)


def tokens_ahead(draft: Draft) -> Tensor:
    """The draft length of each row, ``[batch]``; of a tree, that of its longest branch."""
    if draft.parents is None or not draft.ids.shape[1]:
        return (draft.ids >= 0).sum(dim=-1)
    return draft_depths(draft).amax(dim=-1)


def pruned(draft: Draft, fits: Tensor, most: int) -> Draft:
    """
    Remove the draft tokens of a tree that do not fit, and their descendants.

    If a row still has more than *most*, its last tokens go.

    Args:
        draft: The tree.

        fits: ``[batch, n]`` bool.

        most: The largest number of draft tokens in a row.

    Returns:
        A tree without gaps, each row's draft tokens in their old order.
    """
    parents = parents_of(draft)
    kept = fits.clone()
    for column in range(kept.shape[1]):
        parent = parents[:, column]
        kept[:, column] &= (parent < 0) | kept.gather(1, parent.clamp(min=0)[:, None])[:, 0]
    kept &= kept.cumsum(dim=1) <= most
    number = kept.cumsum(dim=1) - 1
    order = (~kept).long().argsort(dim=1, stable=True)[:, : int(kept.sum(dim=1).max())]
    left = kept.gather(1, order)
    moved = torch.where(parents < 0, -1, number.gather(1, parents.clamp(min=0)))
    return Draft(
        ids=draft.ids.gather(1, order).masked_fill(~left, -1),
        parents=moved.gather(1, order).masked_fill(~left, -1),
    )


def tree_window(now: History, draft: Draft) -> History:
    """
    The tokens before each column when a tree is scored; column 0 follows the row's last token.

    Args:
        now: The tokens so far; width 1, one path.

        draft: The tree, ``[batch, n]``.

    Returns:
        A window of *n* + 1 columns, each on a path of its own.
    """
    length, parents = now.length[:, 0], parents_of(draft)
    depth = torch.nn.functional.pad(draft_depths(draft), (1, 0))
    # The rest of the capacity is not read.
    ids = now.ids[..., : int((length[:, None] + depth).max())].repeat(1, draft.ids.shape[1] + 1, 1)
    rows = torch.arange(len(ids))
    for number in range(draft.ids.shape[1]):
        # A column's path is its parent's path and its own token.
        column, real = number + 1, draft.ids[:, number] >= 0
        path = ids[rows, parents[:, number] + 1]
        path[rows[real], (length + depth[:, column] - 1)[real]] = draft.ids[real, number]
        ids[:, column] = path
    return attrs.evolve(now, ids=ids, length=length[:, None] + depth)


@attrs.frozen(eq=False)
class Branch:
    """The branch of a draft that the target's tokens follow."""

    draft: Draft
    """Its draft tokens as a chain, ``[batch, depth]``."""

    columns: Tensor | None = None
    """
    The columns of the scored window on the branch, ``[batch, depth + 1]``: 0 first; beyond a row's
    end, its last column again. None if the branch is the whole window.
    """

    def gather(self, values: Tensor) -> Tensor:
        """The branch's columns ``[batch, depth + 1, ...]`` of *values* ``[batch, n + 1, ...]``."""
        if self.columns is None:
            return values
        index = self.columns.reshape(*self.columns.shape, *[1] * (values.ndim - 2))
        return values.gather(1, index.expand(*self.columns.shape, *values.shape[2:]))

    def scores(self, scores: Scores) -> Scores:
        """The branch's columns of *scores*."""
        return Scores(lambda: self.gather(scores.logits))

    def column(self, row: int, depth: int) -> int:
        """The window's column at *depth* of the branch."""
        return depth if self.columns is None else int(self.columns[row, depth])


def target_branch(draft: Draft, target_tokens: Tensor) -> Branch:
    """
    Follow the target through a tree: from each column to the child whose token the target took there.

    Args:
        draft: The tree, ``[batch, n]``.

        target_tokens: The target's token in each column, ``[batch, n + 1]``.
    """
    parents = parents_of(draft)
    at = torch.zeros(len(target_tokens), dtype=torch.int64)
    columns, ids = [at], []
    while True:
        tokens = target_tokens.gather(1, at[:, None])
        children = (parents == at[:, None] - 1) & (draft.ids == tokens) & (draft.ids >= 0)
        found = children.any(dim=1)
        if not found.any():
            break
        at = torch.where(found, children.long().argmax(dim=1) + 1, at)
        columns.append(at)
        ids.append(torch.where(found, tokens[:, 0], -1))
    # A row without a matching child keeps its column in all later turns.
    accepted = torch.stack(ids, dim=1) if ids else draft.ids[:, :0]
    return Branch(Draft(accepted), torch.stack(columns, dim=1))


def parents_of(draft: Draft) -> Tensor:
    """The parents of a *draft* that is a tree."""
    assert draft.parents is not None
    return draft.parents
