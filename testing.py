"""
What tests of parts and of decoders need.

:class:`ScriptedDecoder` is a decoder whose logits come from a table: exact in any width and
batch, and quick. :func:`check_decoder` tries a decoder of yours against the contract.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest

import attrs
import numpy as np
import torch
from torch import Tensor

from .decoding.checks import check_inputs, check_tree_inputs, check_tree_widths
from .decoding.protocols import Decoder, DecoderShape, ScoresTrees
from .decoding.trees import depths, first_branch, paths

__all__ = ["ScriptedDecoder", "check_decoder", "last_token", "whole_prefix"]


def last_token(prefix: Sequence[int]) -> int:
    """The line of the table for a decoder that looks at the newest token only."""
    return prefix[-1]


def whole_prefix(prefix: Sequence[int]) -> int:
    """A line that depends on every token and its place, so that one wrong slot shows."""
    state = 1
    for token in prefix:
        state = (state + token + 1442695040888963407) * 6364136223846793005 % (1 << 64)
    return state >> 33


@attrs.define(eq=False)
class ScriptedDecoder:
    """
    A decoder that reads its logits from *table*.

    It keeps a cache as the contract has it, of ids: what follows a column is looked up with
    the ids that lie in the slots up to its position. As in a model, what was written for a
    token is worth nothing once another token stands before it. So tokens that were fed
    wrongly, late, not again, or to another position change the logits.
    """

    table: Tensor
    """``[lines, vocab]``."""

    batch_size: int = 1
    max_length: int = 64
    widths: tuple[int, ...] = (1, 5, 16)
    scored_width: int = 5
    line: Callable[[Sequence[int]], int] = whole_prefix
    """A prefix to a line of the table, modulo its lines; or :func:`last_token`, or your own."""

    tree_widths: tuple[int, ...] = ()
    """Columns of the forwards over trees, ascending; empty for a decoder that scores none."""

    shape: DecoderShape = attrs.field(init=False)
    slots: Tensor = attrs.field(init=False)
    """The cache, ``[batch, max_length]``: ids, -1 where nothing of worth has been written."""

    forwards: list[int] = attrs.field(factory=list, init=False)
    """The widths of the forwards so far."""

    def __attrs_post_init__(self) -> None:
        """Lay out an empty cache."""
        check_tree_widths(self.tree_widths)
        vocab_size = self.table.shape[1]
        self.shape = DecoderShape(
            self.batch_size, self.max_length, vocab_size, self.widths, self.scored_width
        )
        self.slots = torch.full((self.batch_size, self.max_length), -1)

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """See :class:`~decodekit.decoding.protocols.Decoder`."""
        check_inputs(ids, cache_pos, self.shape)
        width = ids.shape[1]
        self.forwards.append(width)
        real = (ids >= 0).nonzero().tolist()
        for row, column in real:
            self._write(row, int(cache_pos[row]) + column, int(ids[row, column]))
        logits = torch.full((len(ids), width, self.shape.vocab_size), torch.nan)
        for row, column in real:
            prefix = self.slots[row, : int(cache_pos[row]) + column + 1].tolist()
            logits[row, column] = self.table[self.line(prefix) % len(self.table)]
        return logits if width <= self.shape.scored_width else logits[:, -1:]

    def forward_tree(self, ids: Tensor, cache_pos: Tensor, parents: Tensor) -> Tensor:
        """See :class:`~decodekit.decoding.protocols.ScoresTrees`."""
        check_tree_inputs(ids, cache_pos, parents, self.shape, self.tree_widths)
        self.forwards.append(ids.shape[1])
        tree = ids.numpy(), parents.numpy()
        depth, path, branch = depths(*tree), paths(*tree), first_branch(*tree)
        logits = torch.full((*ids.shape, self.shape.vocab_size), torch.nan)
        for row, column in (ids >= 0).nonzero().tolist():
            start = int(cache_pos[row])
            if branch[row, column]:
                self._write(row, start + int(depth[row, column]), int(ids[row, column]))
            prefix = self.slots[row, :start].tolist() + ids[row, path[row, column]].tolist()
            logits[row, column] = self.table[self.line(prefix) % len(self.table)]
        return logits

    def _write(self, row: int, position: int, token: int) -> None:
        if self.slots[row, position] != token:
            self.slots[row, position:] = -1
            self.slots[row, position] = token


def check_decoder(decoder: Decoder, *, tolerance: float = 1e-4, seed: int = 0) -> None:
    """
    Try *decoder* against the rules of :class:`~decodekit.decoding.protocols.Decoder`.

    Random tokens are fed token by token, and then again in every width, in ragged rows, under
    padding, over the leavings of other tokens, and up to the last position: the logits must be
    the same up to *tolerance*. A decoder that scores trees is given some: each column must score
    as its path does. Then come the calls that must be refused.

    Args:
        decoder: Any decoder. Its cache is overwritten.

        tolerance: The largest difference of logits allowed, relative to the largest logit.

        seed: Of the random tokens.

    Raises:
        AssertionError: A rule is broken; the message names it.
    """
    shape = decoder.shape
    _require(shape.widths[-1] <= shape.max_length, f"widths must be <= max_length: {shape.widths}")
    random = np.random.default_rng(seed)
    tokens = torch.from_numpy(random.integers(shape.vocab_size, size=(shape.batch_size, shape.max_length)))
    trial = _Trial(decoder, tokens, tolerance)
    trial.step_by_step()
    for width in shape.widths:
        trial.one_wide_forward(width)
        trial.over_leavings(width)
        trial.under_padding(width)
    trial.beside_idle_rows()
    trial.refusals()
    if isinstance(decoder, ScoresTrees) and decoder.tree_widths:
        trees = _TreeTrial(trial, decoder, random)
        for width in trees.decoder.tree_widths:
            trees.one_tree(width)
        trees.refusals()


def _require(holds: bool, message: str) -> None:
    # Not an assert statement: those are gone under ``python -O``.
    if not holds:
        raise AssertionError(message)


@attrs.define(eq=False)
class _Trial:
    decoder: Decoder
    tokens: Tensor
    tolerance: float
    expected: dict[int, Tensor] = attrs.field(factory=dict, init=False)
    """Logits ``[batch, vocab]`` after each position, as the narrowest forward gives them."""

    def forward(self, ids: Tensor, start: Sequence[int]) -> Tensor:
        logits = self.decoder.forward(ids, torch.tensor(start))
        columns = ids.shape[1] if ids.shape[1] <= self.decoder.shape.scored_width else 1
        shape = (len(ids), columns, self.decoder.shape.vocab_size)
        _require(tuple(logits.shape) == shape, f"logits must have the shape {shape}: {tuple(logits.shape)}")
        _require(logits.dtype == torch.float32, f"logits must be float32: {logits.dtype}")
        return logits.clone()

    def compare(self, rule: str, row: int, position: int, logits: Tensor) -> None:
        self.compare_with(self.expected[position][row], rule, row, position, logits)

    def compare_with(self, expected: Tensor, rule: str, row: int, position: int, logits: Tensor) -> None:
        off = float((logits - expected).abs().max())
        limit = self.tolerance * float(expected.abs().max().clamp(min=1.0))
        message = f"{rule}: row {row}, position {position}, off by {off:.3g}, allowed {limit:.3g}"
        _require(off <= limit, message)  # NaN is not within the limit either

    def step_by_step(self) -> None:
        for position in range(self.tokens.shape[1]):
            self.step(position)

    def ragged(self, width: int) -> tuple[Tensor, list[int], list[int]]:
        """A forward of the last tokens in ragged rows: ids, where each row starts, and its count."""
        right = width > self.decoder.shape.scored_width
        ids, start, count = torch.full((len(self.tokens), width), -1), [], []
        for row in range(len(self.tokens)):
            n = max(1, width - row)
            # The first row ends at the very last position, the others start and end elsewhere.
            end = self.tokens.shape[1] - 2 * row % (self.tokens.shape[1] - width + 1)
            indent = width - n if right else 0
            ids[row, indent : indent + n] = self.tokens[row, end - n : end]
            start.append(end - n - indent)
            count.append(n)
        return ids, start, count

    def one_wide_forward(self, width: int) -> None:
        ids, start, count = self.ragged(width)
        logits = self.forward(ids, start)
        for row, n in enumerate(count):
            if logits.shape[1] < width:
                self.compare(
                    f"width {width} scores its last column", row, start[row] + width - 1, logits[row, -1]
                )
                continue
            for column in range(n):
                rule = f"width {width} agrees with width {self.decoder.shape.widths[0]}"
                self.compare(rule, row, start[row] + column, logits[row, column])

    def over_leavings(self, width: int) -> None:
        """Other tokens where these stood, then these again: nothing may remain of the others."""
        ids, start, _ = self.ragged(width)
        other = torch.where(ids >= 0, (ids + 1) % self.decoder.shape.vocab_size, -1)
        self.forward(other, start)
        self.one_wide_forward(width)

    def under_padding(self, width: int) -> None:
        """The first tokens behind padding, from a negative position on, and one token at the end of it."""
        self.step_by_step()
        batch, half = len(self.tokens), max(1, width // 2)
        for n in {half, 1}:
            ids = torch.full((batch, width), -1)
            ids[:, width - n :] = self.tokens[:, :n]
            logits = self.forward(ids, [n - width] * batch)
            for row in range(batch):
                self.compare(
                    f"padding before the tokens of width {width} is not seen", row, n - 1, logits[row, -1]
                )
            ids = torch.full((batch, width), -1)
            ids[:, :n] = self.tokens[:, :n]
            self.forward(ids, [0] * batch)
        # What stood behind them has to stand there still.
        last = self.tokens.shape[1] - 1
        self.step(last)

    def step(self, position: int) -> None:
        """Every row's token at *position*, by the narrowest forward."""
        ids = torch.full((len(self.tokens), self.decoder.shape.widths[0]), -1)
        ids[:, 0] = self.tokens[:, position]
        logits = self.forward(ids, [position] * len(self.tokens))[:, 0]
        self.expected.setdefault(position, logits)
        for row in range(len(self.tokens)):
            self.compare(
                "padding writes nothing, and a token is written where it belongs", row, position, logits[row]
            )

    def beside_idle_rows(self) -> None:
        """One row advances, the others are padding: their caches must stay as they are."""
        self.step_by_step()
        narrow, batch = self.decoder.shape.widths[0], len(self.tokens)
        last = self.tokens.shape[1] - 1
        for row in range(batch):
            ids = torch.full((batch, narrow), -1)
            ids[row, 0] = self.tokens[row, last]
            start = [last if r == row else 0 for r in range(batch)]
            self.compare("idle rows stay as they are", row, last, self.forward(ids, start)[row, 0])

    def refusals(self) -> None:
        shape, width = self.decoder.shape, self.decoder.shape.widths[0]
        ids, start = torch.zeros(shape.batch_size, width, dtype=torch.int64), torch.zeros(shape.batch_size)
        start = start.long()
        unknown = torch.zeros(shape.batch_size, _no_width(shape.widths), dtype=torch.int64)
        cases = {
            "another width": (unknown, start, ValueError),
            "another batch": (torch.zeros(shape.batch_size + 1, width, dtype=torch.int64), start, ValueError),
            "another dtype": (ids.int(), start, TypeError),
            "floating positions": (ids, start.float(), TypeError),
            "an id beyond the vocabulary": (ids + shape.vocab_size, start, ValueError),
            "an id below -1": (ids - 2, start, ValueError),
            "a position beyond the last": (ids, start + shape.max_length, ValueError),
            "a negative position": (ids, start - 1, ValueError),
        }
        for name, (bad_ids, bad_start, error) in cases.items():
            _require_refusal(name, error, partial(self.decoder.forward, bad_ids, bad_start))
        self.beside_idle_rows()


@attrs.define(eq=False)
class _TreeTrial:
    trial: _Trial
    decoder: ScoresTrees
    random: np.random.Generator

    def forward(self, tree: "_Tree") -> Tensor:
        logits = self.decoder.forward_tree(tree.ids, tree.start, tree.parents)
        shape = (*tree.ids.shape, self.trial.decoder.shape.vocab_size)
        _require(tuple(logits.shape) == shape, f"logits must have the shape {shape}: {tuple(logits.shape)}")
        _require(logits.dtype == torch.float32, f"logits must be float32: {logits.dtype}")
        return logits.clone()

    def one_tree(self, width: int) -> None:
        """A random tree whose first branch is the tokens themselves."""
        tree = _Tree.over(self.trial.tokens, width, self.random)
        self.trial.step_by_step()
        self.leave_others(tree)
        logits = self.forward(tree)
        self.after_the_first_branch(tree)
        self.trial.step_by_step()
        self.beside_idle_rows(tree)
        self.as_chains(tree, logits)

    def leave_others(self, tree: "_Tree") -> None:
        """Other tokens where the first branch is to stand."""
        vocab_size = self.trial.decoder.shape.vocab_size
        for columns in tree.steps([branch[-1] for branch in tree.branches]):
            ids = tree.at(columns)
            self.step(torch.where(ids >= 0, (ids + 1) % vocab_size, -1), tree.start + tree.depth_of(columns))

    def after_the_first_branch(self, tree: "_Tree") -> None:
        """The token behind it finds it in the cache."""
        tokens, rows = self.trial.tokens, torch.arange(len(tree.ids))
        position = tree.start + torch.tensor([len(branch) for branch in tree.branches])
        inside = position < tokens.shape[1]
        ids = torch.where(inside, tokens[rows, position.clamp(max=tokens.shape[1] - 1)], -1)
        logits = self.step(ids, torch.where(inside, position, 0))
        for row in inside.nonzero().flatten().tolist():
            rule = "a tree leaves its first branch in the cache and nothing else"
            self.trial.compare(rule, row, int(position[row]), logits[row])

    def beside_idle_rows(self, tree: "_Tree") -> None:
        """One row's tree, the others padding: nothing but its first branch, which stood there, may remain."""
        for row in range(len(tree.ids)):
            alone = torch.full_like(tree.ids, -1)
            alone[row] = tree.ids[row]
            self.forward(attrs.evolve(tree, ids=alone))
            self.trial.step(self.trial.tokens.shape[1] - 1)

    def as_chains(self, tree: "_Tree", logits: Tensor) -> None:
        """Every column's path, fed token by token."""
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
        """One token a row, -1 for none, by the narrowest forward: ``[batch, vocab]``."""
        wide = torch.full((len(ids), self.trial.decoder.shape.widths[0]), -1)
        wide[:, 0] = ids
        return self.trial.forward(wide, position.tolist())[:, 0]

    def refusals(self) -> None:
        shape, width = self.trial.decoder.shape, self.decoder.tree_widths[-1]
        unknown = torch.zeros(shape.batch_size, _no_width(self.decoder.tree_widths), dtype=torch.int64)
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
            _require_refusal(name, error, partial(self.decoder.forward_tree, bad_ids, bad_start, bad_parents))
        self.trial.beside_idle_rows()


@attrs.frozen(eq=False)
class _Tree:
    ids: Tensor
    start: Tensor
    parents: Tensor
    depth: Tensor
    branches: list[list[int]]
    """The columns of each row's first branch."""

    @classmethod
    def over(cls, tokens: Tensor, width: int, random: np.random.Generator) -> "_Tree":
        """Ragged random trees, another for each row, whose first branch repeats *tokens*."""
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
            # The first row ends at the very last position.
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
        """The ways to a column of each row, -1 for none: at each step one column a row, -1 behind its end."""
        path = paths(self.ids.numpy(), self.parents.numpy())
        ways = [np.flatnonzero(path[row, end]).tolist() if end >= 0 else [] for row, end in enumerate(ends)]
        return map(list, zip_longest(*ways, fillvalue=-1))

    def at(self, columns: Sequence[int]) -> Tensor:
        """The ids in one column of each row, -1 for none."""
        return torch.tensor([self.ids[row, at] if at >= 0 else -1 for row, at in enumerate(columns)])

    def depth_of(self, columns: Sequence[int]) -> Tensor:
        """The depths of one column of each row."""
        return torch.tensor([self.depth[row, at] for row, at in enumerate(columns)])


def _no_width(widths: Sequence[int]) -> int:
    return next(width for width in range(1, widths[-1] + 2) if width not in widths)


def _require_refusal(name: str, error: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{name} must raise {error.__name__}: {other!r}") from other
    raise AssertionError(f"{name} must be refused")
