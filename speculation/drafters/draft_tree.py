"""Drafting a tree with a smaller model."""

import attrs
import torch
from torch import Tensor

from ...decoding.cache.slots import feeder_of
from ...decoding.history import History
from ...decoding.protocols import DecoderShape, Draft, SamplesTokens
from ...decoding.token_feeder import TokenFeeder
from ...decoding.trees import tree_window
from .draft_model import DraftModel
from .tree import ROOT, Tree


@attrs.frozen(eq=False)
class DraftTree(DraftModel):
    """
    Draft a tree of continuations with *decoder*, a smaller model.

    The children of a node are the top tokens under the noise that the target uses at that
    position: Gumbel-top-k (Kool, van Hoof and Welling, 2019, `Stochastic Beams and Where to Find
    Them <https://arxiv.org/abs/1903.06059>`_, section 2.3) where the noise is flat, and close to it
    for the two levels of :meth:`Sample <decodekit.decoding.Sample.top_choices>`. The target scores
    the tree in one forward and follows from each node the child that it samples itself, so the
    output equals that of plain decoding. For greedy decoding the children are the top-k tokens.

    Compile the target with ``tree_widths``: one more than the number of nodes, ideally plus the
    tree's depth. Those columns re-feed an accepted branch other than the first, which alone is kept
    in the cache, beside the next tree.
    """

    tree: Tree = attrs.field(default=Tree.comb(3, 2, 2, 2), validator=attrs.validators.instance_of(Tree))
    """Shape of the draft tree."""

    @property
    def tree_nodes(self) -> int:
        """Maximum number of draft tokens in a tree."""
        return len(self.tree.parents)

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` unless the decoder can draft this tree for *target*."""
        super().check_target(target)
        fed = sum(map(len, self.tree.inner))
        widths = feeder_of(self.decoder).tree_widths
        if not self._is_comb() and max(widths, default=0) < fed:
            raise ValueError(
                f"the draft must score trees {fed} wide to draft this one: it has the tree widths {widths}. "
                f"Compile it with tree_widths=({fed},), or take a Tree.comb(), which needs none"
            )

    def _is_comb(self) -> bool:
        return all(len(level) == 1 for level in self.tree.inner)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """Propose trees up to *budget* tokens ``[batch]`` deep, one forward of all rows per level."""
        batch, length = len(budget), history.length[:, 0]
        # A draft token's predecessor is fed at its position, so the cache bounds the draft too.
        budget = budget.minimum(self.decoder.shape.max_length + 1 - length).clamp(min=0)
        history = history.with_room(len(self.tree.inner))
        parents = torch.tensor(self.tree.parents)
        drafted = torch.full((batch, len(parents)), -1)
        fed: list[int] = []
        for depth, level in enumerate(self.tree.inner):
            active = budget > depth
            if not active.any():
                break
            fed += [node for node in level if node != ROOT]
            so_far = _subtree(drafted, self.tree.parents, fed, active)
            window = tree_window(history, so_far)
            columns = [fed.index(node) + 1 if node != ROOT else 0 for node in level]
            most = max(len(self.tree.children(node)) for node in level)
            feeder = feeder_of(self.decoder)
            with feeder.lock:
                logits = self._score(feeder, history, so_far, active)[:, columns]
                here = attrs.evolve(window, ids=window.ids[:, columns], length=window.length[:, columns])
                top_choices = sample.top_choices(logits, here, most)
            for place, parent in enumerate(level):
                for rank, node in enumerate(self.tree.children(parent)):
                    # Children of a missing node are ignored: see Draft.
                    drafted[:, node] = torch.where(active, top_choices[:, place, rank], -1)
        return Draft(drafted, parents=parents.repeat(batch, 1))

    def _score(self, feeder: TokenFeeder, history: History, so_far: Draft, active: Tensor) -> Tensor:
        """Logits ``[batch, n + 1, vocab]`` after the last token and each node of *so_far*."""
        length, count = history.length[:, 0], so_far.ids.shape[1]
        if not self._is_comb():
            return feeder.feed_tree(history, length, so_far, active)
        longer = history.with_room(count)
        for i in range(count):
            longer.ids[active, 0, (length + i)[active]] = so_far.ids[active, i]
        fed = feeder.feed(longer, length + count * active, active.long())
        return fed.logits.expand(-1, count + 1, -1)


def _subtree(drafted: Tensor, parents: tuple[int, ...], fed: list[int], active: Tensor) -> Draft:
    """The nodes *fed* of the active rows as a tree; a missing node's column holds an arbitrary token."""
    ids = torch.where(active[:, None], drafted[:, fed].clamp(min=0), -1)
    follows = [ROOT if parents[node] == ROOT else fed.index(parents[node]) for node in fed]
    return Draft(ids, parents=torch.tensor(follows, dtype=torch.int64).expand_as(ids))
