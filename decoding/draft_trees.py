"""Trees of guesses: several ways in which a text may go on, scored together."""

import attrs
import torch
from torch import Tensor

from . import tree_arrays
from .history import History
from .protocols import Draft
from .scores import Scores


def depths(draft: Draft) -> Tensor:
    """How many tokens ahead each guess of a tree is, ``[batch, n]``; 0 where there is none."""
    # A draft may have gaps between its guesses: for its parents alone they are columns like others.
    steps = torch.from_numpy(tree_arrays.depths(torch.zeros_like(draft.ids).numpy(), _parents(draft).numpy()))
    return (steps + 1).masked_fill(draft.ids < 0, 0)


def tokens_ahead(draft: Draft) -> Tensor:
    """How many tokens ahead each row is guessed, ``[batch]``: along the longest branch of a tree."""
    if draft.parents is None or not draft.ids.shape[1]:
        return (draft.ids >= 0).sum(dim=-1)
    return depths(draft).amax(dim=-1)


def pruned(draft: Draft, fits: Tensor, most: int) -> Draft:
    """
    What is left of a tree when guesses that do not fit go, and all that follow them.

    Of more guesses than there may be the last ones go, which nothing follows.

    Args:
        draft: The tree.

        fits: ``[batch, n]`` bool.

        most: How many guesses a row may have.

    Returns:
        A tree in which a row's guesses stand side by side, in their old order.
    """
    parents = _parents(draft)
    kept = fits.clone()
    for guess in range(kept.shape[1]):
        follows = parents[:, guess]
        kept[:, guess] &= (follows < 0) | kept.gather(1, follows.clamp(min=0)[:, None])[:, 0]
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
    The tokens before each column when a tree is scored: column 0 follows the row's last token.

    Args:
        now: The tokens so far; width 1, one path.

        draft: The tree, ``[batch, n]``.

    Returns:
        A window of *n* + 1 columns, each on a path of its own.
    """
    length, parents = now.length[:, 0], _parents(draft)
    depth = torch.nn.functional.pad(depths(draft), (1, 0))
    ids = now.ids.repeat(1, draft.ids.shape[1] + 1, 1)
    rows = torch.arange(len(ids))
    for guess in range(draft.ids.shape[1]):
        # A column's path is its parent's, and its own token.
        column, real = guess + 1, draft.ids[:, guess] >= 0
        path = ids[rows, parents[:, guess] + 1]
        path[rows[real], (length + depth[:, column] - 1)[real]] = draft.ids[real, guess]
        ids[:, column] = path
    return attrs.evolve(now, ids=ids, length=length[:, None] + depth)


@attrs.frozen(eq=False)
class Branch:
    """The way through a draft that the target's choices take."""

    draft: Draft
    """Its guesses as a chain, ``[batch, depth]``."""

    columns: Tensor | None = None
    """
    ``[batch, depth + 1]``: columns of the forward's window, 0 first; the last again behind a
    row's end. None where they are the window's own.
    """

    def of(self, values: Tensor) -> Tensor:
        """Of what there is a column, ``[batch, n + 1, ...]``, the branch's, ``[batch, depth + 1, ...]``."""
        if self.columns is None:
            return values
        index = self.columns.reshape(*self.columns.shape, *[1] * (values.ndim - 2))
        return values.gather(1, index.expand(*self.columns.shape, *values.shape[2:]))

    def scores(self, scores: Scores) -> Scores:
        """The branch's part of *scores*."""
        return Scores(lambda: self.of(scores.logits))

    def column(self, row: int, depth: int) -> int:
        """The window's column at *depth* of the branch."""
        return depth if self.columns is None else int(self.columns[row, depth])


def chosen_branch(draft: Draft, choices: Tensor) -> Branch:
    """
    Follow the target through a tree, from each column to the child that it chose there.

    Args:
        draft: The tree, ``[batch, n]``.

        choices: The target's choice in each column, ``[batch, n + 1]``.
    """
    parents = _parents(draft)
    at = torch.zeros(len(choices), dtype=torch.int64)
    columns, ids = [at], []
    while True:
        chosen = choices.gather(1, at[:, None])
        children = (parents == at[:, None] - 1) & (draft.ids == chosen) & (draft.ids >= 0)
        found = children.any(dim=1)
        if not found.any():
            break
        at = torch.where(found, children.long().argmax(dim=1) + 1, at)
        columns.append(at)
        ids.append(torch.where(found, chosen[:, 0], -1))
    # A row that found no child finds none at the next turn either: it stands where it stood.
    guesses = torch.stack(ids, dim=1) if ids else draft.ids[:, :0]
    return Branch(Draft(guesses), torch.stack(columns, dim=1))


def _parents(draft: Draft) -> Tensor:
    assert draft.parents is not None
    return draft.parents
