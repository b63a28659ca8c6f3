"""Drafting tokens that a grammar forces."""

from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import ChecksTarget, decides_by_time, tree_nodes
from ...decoding.protocols import DecoderShape, Draft, Drafter, SamplesTokens
from ...processors.grammar.grammar import Grammar
from ..verification.point_mass import point_mass


def _a_drafter(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is not None and (isinstance(value, type) or not isinstance(value, Drafter)):
        raise TypeError(
            f"'{attribute.name}' must be None or have propose(history, budget, sample): got {value!r}"
        )


@attrs.frozen(eq=False)
class ForcedTokens:
    """
    Draft the tokens that *grammar* forces, then continue with another drafter.

    Where the grammar allows exactly one token, no other can be sampled: with the same grammar in
    the generator's chain such a draft token is always accepted, at any temperature. A JSON schema
    forces its field names and the punctuation around them. The end of sequence is a token like any
    other: where the text may end, its continuation is not forced; where it must end, the end of
    sequence is the last draft token.

    The grammar's own matchers are used, so states computed for a draft are shared with the
    processor.
    """

    grammar: Grammar = attrs.field(validator=validators.instance_of(Grammar))
    """The same processor object as in the chain."""

    then: Drafter | None = attrs.field(default=None, validator=_a_drafter)
    """Drafter that continues after the forced tokens; None for none."""

    @property
    def tree_nodes(self) -> int | None:
        """Maximum number of draft tokens in a tree of :attr:`then`; None if it drafts no trees."""
        return tree_nodes(self.then)

    @property
    def decides_by_time(self) -> bool:
        """Whether :attr:`then` does."""
        return decides_by_time(self.then)

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` unless :attr:`then` can draft for *target*."""
        if isinstance(self.then, ChecksTarget):
            self.then.check_target(target)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """Propose up to *budget* tokens ``[batch]`` for each row."""
        forced = self.grammar.forced(history, budget)
        count = torch.tensor([len(tokens) for tokens in forced])
        ids = torch.full((len(forced), int(count.max())), -1)
        for row, tokens in enumerate(forced):
            ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        ended = [bool(tokens) and tokens[-1] in self.grammar.ends(row) for row, tokens in enumerate(forced)]
        rest = torch.where(torch.tensor(ended), 0, budget - count)
        if self.then is None or not rest.any():
            return Draft(ids)
        longer = history.with_room(int(budget.max()))
        return _concatenated(ids, count, self.then.propose(_after(longer, ids, count), rest, sample))


def _after(history: History, ids: Tensor, count: Tensor) -> History:
    """Append each row's *count* draft tokens *ids* to *history*, whose ids are written."""
    rows, columns = (ids >= 0).nonzero(as_tuple=True)
    history.ids[rows, 0, history.length[rows, 0] + columns] = ids[rows, columns]
    return history.at(history.length + count[:, None])


def _concatenated(ids: Tensor, count: Tensor, further: Draft) -> Draft:
    """Each row's *count* draft tokens *ids*, followed by those of *further*."""
    columns = count[:, None] + torch.arange(further.ids.shape[1])
    combined = torch.nn.functional.pad(ids, (0, further.ids.shape[1]), value=-1)
    combined.scatter_(1, columns, further.ids)
    scores, parents = further.scores, further.parents
    if scores is not None:
        at = columns[..., None].expand(scores.shape)
        scores = point_mass(combined, scores).scatter_(1, at, scores)
    if parents is not None:
        # Children of the row's last token become children of the last forced token.
        moved = torch.where(parents < 0, count[:, None] - 1, parents + count[:, None])
        chain = torch.arange(-1, combined.shape[1] - 1).expand(combined.shape)
        parents = chain.scatter(1, columns, moved)
    return Draft(combined, scores, parents)
