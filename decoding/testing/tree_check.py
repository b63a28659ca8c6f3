"""Contract checks of :class:`~..protocols.ScoresTrees`."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import zip_longest

import attrs
import numpy as np
import torch
from torch import Tensor

from ..protocols import ScoresTrees
from ..trees import depths, first_branch, paths
from .assertions import require, require_refusal, unknown_width
from .chain_check import ChainTrial


@attrs.frozen(eq=False)
class RandomTree:
    """A tree of tokens for each row of a batch."""

    ids: Tensor
    start: Tensor
    parents: Tensor
    depth: Tensor
    branches: list[list[int]]
    """The columns of each row's first branch."""

    @classmethod
    def over(cls, tokens: Tensor, width: int, random: np.random.Generator) -> "RandomTree":
        """Ragged random trees, a different one for each row, whose first branch repeats *tokens*."""
        batch, max_length = tokens.shape
        parents = np.full((batch, width), -1)
        ids = np.full((batch, width), -1)
        start = np.zeros(batch, dtype=np.int64)
        branches = []
        for row in range(batch):
            depth: list[int] = []
            count = max(1, width - row)
            for column in range(count):
                parent = column - 1 if random.integers(2) else int(random.integers(-1, column))
                # No deeper than there are positions.
                if parent >= 0 and depth[parent] + 1 < max_length:
                    parents[row, column] = parent
                depth.append(depth[parents[row, column]] + 1 if parents[row, column] >= 0 else 0)
            # The first row ends at the last position.
            start[row] = max(0, max_length - 1 - max(depth) - row)
            ids[row, :count] = random.integers(int(tokens.max()) + 1, size=count)
            branch = np.flatnonzero(first_branch(ids[row : row + 1], parents[row : row + 1])[0])
            ids[row, branch] = tokens[row, start[row] : start[row] + len(branch)]
            branches.append(branch.tolist())
        return cls(
            torch.from_numpy(ids),
            torch.from_numpy(start),
            torch.from_numpy(parents),
            torch.from_numpy(depths(ids, parents)),
            branches,
        )

    def steps(self, ends: Sequence[int]) -> Iterator[list[int]]:
        """The path to a column of each row (-1: none), step by step: one column a row, -1 after its end."""
        path = paths(self.ids.numpy(), self.parents.numpy())
        ways = [np.flatnonzero(path[row, end]).tolist() if end >= 0 else [] for row, end in enumerate(ends)]
        return map(list, zip_longest(*ways, fillvalue=-1))

    def at(self, columns: Sequence[int]) -> Tensor:
        """The ids in one column of each row, -1 for none."""
        return torch.tensor([self.ids[row, at] if at >= 0 else -1 for row, at in enumerate(columns)])

    def depth_of(self, columns: Sequence[int]) -> Tensor:
        """The depths of one column of each row."""
        return torch.tensor([self.depth[row, at] for row, at in enumerate(columns)])


@attrs.define(eq=False)
class TreeTrial:
    """The rules of :class:`~..protocols.ScoresTrees`, tried on random trees."""

    trial: ChainTrial
    decoder: ScoresTrees
    random: np.random.Generator

    def forward(self, tree: RandomTree) -> Tensor:
        """Logits of a tree forward, their shape and dtype checked."""
        self.trial.fed = tree.ids, tree.start.tolist()
        logits = self.decoder.forward_tree(tree.ids, tree.start, tree.parents)
        shape = (*tree.ids.shape, self.trial.decoder.shape.vocab_size)
        require(tuple(logits.shape) == shape, f"logits must have the shape {shape}: {tuple(logits.shape)}")
        require(logits.dtype == torch.float32, f"logits must be float32: {logits.dtype}")
        return logits.clone()

    def one_tree(self, width: int) -> None:
        """Check one random tree, whose first branch is the tokens."""
        tree = RandomTree.over(self.trial.tokens, width, self.random)
        self.trial.step_by_step()
        self.leave_others(tree)
        logits = self.forward(tree)
        self.after_the_first_branch(tree)
        self.trial.step_by_step()
        self.beside_idle_rows(tree)
        self.as_chains(tree, logits)

    def leave_others(self, tree: RandomTree) -> None:
        """Fill the slots of the first branch with other tokens."""
        vocab_size = self.trial.decoder.shape.vocab_size
        for columns in tree.steps([branch[-1] for branch in tree.branches]):
            ids = tree.at(columns)
            self.step(torch.where(ids >= 0, (ids + 1) % vocab_size, -1), tree.start + tree.depth_of(columns))

    def after_the_first_branch(self, tree: RandomTree) -> None:
        """The first branch must be in the cache for the token after it."""
        tokens, rows = self.trial.tokens, torch.arange(len(tree.ids))
        position = tree.start + torch.tensor([len(branch) for branch in tree.branches])
        inside = position < tokens.shape[1]
        ids = torch.where(inside, tokens[rows, position.clamp(max=tokens.shape[1] - 1)], -1)
        logits = self.step(ids, torch.where(inside, position, 0))
        for row in inside.nonzero().flatten().tolist():
            rule = "a tree leaves its first branch in the cache and nothing else"
            self.trial.compare(rule, row, int(position[row]), logits[row])

    def beside_idle_rows(self, tree: RandomTree) -> None:
        """One row's tree, the others padding: only its first branch, cached before, may remain."""
        for row in range(len(tree.ids)):
            alone = torch.full_like(tree.ids, -1)
            alone[row] = tree.ids[row]
            self.forward(attrs.evolve(tree, ids=alone))
            self.trial.step(self.trial.tokens.shape[1] - 1)

    def as_chains(self, tree: RandomTree, logits: Tensor) -> None:
        """Compare every column with its path, fed token by token."""
        for column in range(tree.ids.shape[1]):
            ends = [column if tree.ids[row, column] >= 0 else -1 for row in range(len(tree.ids))]
            for columns in tree.steps(ends):
                chain = self.step(tree.at(columns), tree.start + tree.depth_of(columns))
                for row, at in enumerate(columns):
                    if at == column:
                        position = int(tree.start[row] + tree.depth[row, column])
                        rule = f"column {column} of a tree of width {tree.ids.shape[1]} scores as its path"
                        self.trial.compare_with(chain[row], rule, row, position, logits[row, column])

    def step(self, ids: Tensor, position: Tensor) -> Tensor:
        """Feed one token a row, -1 for none, through the narrowest forward: ``[batch, vocab]``."""
        return self.trial.narrow(ids, position)

    def refusals(self) -> None:
        """Invalid calls must raise and write nothing."""
        shape, width = self.trial.decoder.shape, self.decoder.tree_widths[-1]
        unknown = torch.zeros(shape.batch_size, unknown_width(self.decoder.tree_widths), dtype=torch.int64)
        ids, start = torch.zeros(shape.batch_size, width, dtype=torch.int64), torch.zeros(shape.batch_size)
        start, roots = start.long(), torch.full_like(ids, -1)
        cases = {
            "a tree of another width": (unknown, start, unknown - 1, ValueError),
            "another dtype of ids": (ids.int(), start, roots, TypeError),
            "floating positions": (ids, start.float(), roots, TypeError),
            "another dtype of parents": (ids, start, roots.int(), TypeError),
            "parents of another shape": (ids, start, roots[:, 1:], ValueError),
            "an id beyond the vocabulary": (ids + shape.vocab_size, start, roots, ValueError),
            "an id below -1": (ids - 2, start, roots, ValueError),
            "a column that is its own parent": (ids, start, roots + 1, ValueError),
            "a parent below -1": (ids, start, roots - 1, ValueError),
            "a position beyond the last": (ids, start + shape.max_length, roots, ValueError),
            "a negative position": (ids, start - 1, roots, ValueError),
        }
        if width > 1:
            gap = torch.cat([roots[:, :1], ids[:, 1:]], dim=1)
            cases["padding before a token"] = (gap, start, roots, ValueError)
        for name, (bad_ids, bad_start, bad_parents, error) in cases.items():
            require_refusal(name, error, partial(self.decoder.forward_tree, bad_ids, bad_start, bad_parents))
        self.trial.beside_idle_rows()
