"""Guessing a tree with a smaller model."""

import attrs
import torch
from torch import Tensor

from ...decoding.cache.slots import Slots
from ...decoding.history import History
from ...decoding.optional_protocols import tree_widths
from ...decoding.protocols import DecoderShape, Draft, SamplesTokens
from ...decoding.trees import tree_window
from .draft_model import DraftModel
from .tree import ROOT, Tree


@attrs.frozen(eq=False)
class DraftTree(DraftModel):
    """
    Guess several ways in which the text may go on, with *decoder*, a smaller model.

    At each guess the draft takes the tokens that the noise of the position favours, not its own
    choice alone, under the noise that the target meets there: Gumbel-top-k (Kool, van Hoof and
    Welling, 2019, `Stochastic Beams and Where to Find Them <https://arxiv.org/abs/1903.06059>`_,
    section 2.3) where the noise is flat, and something close to it in the two levels of
    :meth:`Sample <decodekit.decoding.Sample.top_choices>`. The target scores the tree in one forward
    and goes from each token to the child that it chooses itself, so the text stays plain
    decoding's. For greedy decoding the children are the likeliest tokens.

    Compile the target with ``tree_widths``: one more than the tree has guesses, and best as many
    more as it is deep. With those a branch other than the first, which alone is kept in the
    cache, is fed again beside the next tree.
    """

    tree: Tree = attrs.field(default=Tree.comb(3, 2, 2, 2), validator=attrs.validators.instance_of(Tree))
    """Its shape."""

    @property
    def tree_nodes(self) -> int:
        """How many guesses a tree has at most."""
        return len(self.tree.parents)

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` unless this can draft for *target*."""
        super().check_target(target)
        fed = sum(map(len, self.tree.inner))
        widths = tree_widths(self.decoder)
        if not self._is_comb() and max(widths, default=0) < fed:
            raise ValueError(
                f"the draft must score trees {fed} wide to draft this one: it has the tree widths {widths}. "
                f"Compile it with tree_widths=({fed},), or take a Tree.comb(), which needs none"
            )

    def _is_comb(self) -> bool:
        return all(len(level) == 1 for level in self.tree.inner)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """Guess up to *budget* tokens ``[batch]`` ahead of each row, one forward of all rows a level."""
        batch, length = len(budget), history.length[:, 0]
        # A guess's predecessor is fed at its position, so the cache bounds the guesses too.
        budget = budget.minimum(self.decoder.shape.max_length + 1 - length).clamp(min=0)
        parents = torch.tensor(self.tree.parents)
        guesses = torch.full((batch, len(parents)), -1)
        fed: list[int] = []
        for depth, level in enumerate(self.tree.inner):
            active = budget > depth
            if not active.any():
                break
            fed += [guess for guess in level if guess != ROOT]
            so_far = _subtree(guesses, self.tree.parents, fed, active)
            window = tree_window(history, so_far)
            columns = [fed.index(guess) + 1 if guess != ROOT else 0 for guess in level]
            most = max(len(self.tree.children(guess)) for guess in level)
            slots = Slots.of(self.decoder)
            with slots.lock:
                logits = self._score(slots, history, so_far, active)[:, columns]
                here = attrs.evolve(window, ids=window.ids[:, columns], length=window.length[:, columns])
                top_choices = sample.top_choices(logits, here, most)
            for place, parent in enumerate(level):
                for rank, guess in enumerate(self.tree.children(parent)):
                    # Below what is no guess there is none either: see Draft.
                    guesses[:, guess] = torch.where(active, top_choices[:, place, rank], -1)
        return Draft(guesses, parents=parents.repeat(batch, 1))

    def _score(self, slots: Slots, history: History, so_far: Draft, active: Tensor) -> Tensor:
        """Logits ``[batch, n + 1, vocab]`` after the last token and each guess of *so_far*."""
        length, count = history.length[:, 0], so_far.ids.shape[1]
        if not self._is_comb():
            assert so_far.parents is not None
            return slots.feed_tree(history.ids[:, 0], length, so_far.ids, so_far.parents, active)
        ids = history.ids[:, 0].clone()
        for i in range(count):
            ids[active, (length + i)[active]] = so_far.ids[active, i]
        newest = slots.feed(ids, length + count * active, active.long())
        return newest.expand(-1, count + 1, -1)


def _subtree(guesses: Tensor, parents: tuple[int, ...], fed: list[int], active: Tensor) -> Draft:
    """The guesses *fed* of the active rows, as a tree; where one is none, any token fills its column."""
    ids = torch.where(active[:, None], guesses[:, fed].clamp(min=0), -1)
    follows = [ROOT if parents[guess] == ROOT else fed.index(parents[guess]) for guess in fed]
    return Draft(ids, parents=torch.tensor(follows, dtype=torch.int64).expand_as(ids))
