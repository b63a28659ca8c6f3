"""Guessing what a grammar leaves no choice about."""

from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import ChecksTarget, tree_nodes
from ...decoding.protocols import DecoderShape, Draft, Drafter, SamplesTokens
from ...processors.grammar.grammar import Grammar
from ..verification.point_mass import point_mass


def _a_drafter(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is not None and (isinstance(value, type) or not isinstance(value, Drafter)):
        raise TypeError(
            f"'{attribute.name}' must be None or have propose(history, budget, choose): got {value!r}"
        )


@attrs.frozen(eq=False)
class ForcedTokens:
    """
    Guess the tokens that *grammar* forces, and hand over to another drafter after them.

    Where the grammar allows one token alone, nothing else can be chosen: with the same grammar
    in the generator's chain such a guess always stands, at whatever temperature. A JSON schema
    forces the names of its fields and what stands around them. An end of sequence is a token
    like others: where the text may end, what may follow is not forced; where it has to, the end
    is, and nothing else behind it.

    The matchers are the grammar's own, so what one of them has walked for a draft, the other
    need not walk again.
    """

    grammar: Grammar = attrs.field(validator=validators.instance_of(Grammar))
    """The very processor that stands in the chain."""

    then: Drafter | None = attrs.field(default=None, validator=_a_drafter)
    """What guesses on from there, as if the forced tokens had been chosen; None for nothing."""

    @property
    def tree_nodes(self) -> int | None:
        """How many guesses a tree of the other drafter has; None if it grows none."""
        return tree_nodes(self.then)

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` unless the other drafter can draft for *target*."""
        if isinstance(self.then, ChecksTarget):
            self.then.check_target(target)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """Guess up to *budget* tokens ``[batch]`` of each row."""
        forced = self.grammar.forced(history, budget)
        count = torch.tensor([len(tokens) for tokens in forced])
        ids = torch.full((len(forced), int(count.max())), -1)
        for row, tokens in enumerate(forced):
            ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        rest = budget - count
        if self.then is None or not rest.any():
            return Draft(ids)
        return _joined(ids, count, self.then.propose(_after(history, ids, count), rest, sample))


def _after(history: History, ids: Tensor, count: Tensor) -> History:
    """*history* with the *count* guesses *ids* of each row behind it: a copy."""
    longer = history.ids.clone()
    rows, columns = (ids >= 0).nonzero(as_tuple=True)
    longer[rows, 0, history.length[rows, 0] + columns] = ids[rows, columns]
    return attrs.evolve(history, ids=longer, length=history.length + count[:, None])


def _joined(ids: Tensor, count: Tensor, further: Draft) -> Draft:
    """The *count* guesses *ids* of each row, and then those of *further*."""
    columns = count[:, None] + torch.arange(further.ids.shape[1])
    joined = torch.nn.functional.pad(ids, (0, further.ids.shape[1]), value=-1)
    joined.scatter_(1, columns, further.ids)
    scores, parents = further.scores, further.parents
    if scores is not None:
        at = columns[..., None].expand(scores.shape)
        scores = point_mass(joined, scores).scatter_(1, at, scores)
    if parents is not None:
        # What followed the row's last token follows the last forced one now.
        moved = torch.where(parents < 0, count[:, None] - 1, parents + count[:, None])
        chain = torch.arange(-1, joined.shape[1] - 1).expand(joined.shape)
        parents = chain.scatter(1, columns, moved)
    return Draft(joined, scores, parents)
