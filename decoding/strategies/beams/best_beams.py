"""The beam search of one prompt."""

import math
from collections.abc import Callable

import attrs
import numpy as np
from torch import Tensor

from ...protocols import Finish
from ...sampling.top_tokens import top_tokens
from .beam import Beam, Hypothesis
from .beam_stop import PromptStop


@attrs.define(eq=False)
class BestBeams:
    """
    The beams of one prompt with the largest sums of log-probabilities.

    Of the children of all beams the best ``max(2, 1 + end tokens) * num_beams`` are looked at, so that
    *num_beams* of them go on even if all end tokens are among them. A child that ends becomes a hypothesis
    only if it is among the best *num_beams*. Ties go to the better parent, then to the lower id.
    """

    num_beams: int
    length_penalty: float
    early_stopping: bool | str
    stop: PromptStop
    looked_at: int
    """The number of children that are looked at in each step."""

    beams: list[Beam] = attrs.field(factory=lambda: [Beam.empty()], init=False)
    """Best first."""

    _ended: list[Hypothesis] = attrs.field(factory=list, init=False)

    def extend(self, log_probs: Tensor, explain: Callable[[int], Finish]) -> list[int]:
        """See :class:`~.prompt_search.PromptSearch`."""
        parents: list[int] = []
        children: list[Beam] = []
        for place, (parent, child) in enumerate(self._best_children(log_probs)):
            finish = self.stop(child)
            if finish is None and len(children) < self.num_beams:
                parents.append(parent)
                children.append(child)
            elif finish is not None and place < self.num_beams:
                self._end(child, finish)
        if not children and not self._ended:
            # No beam has a possible token.
            for index, beam in enumerate(self.beams):
                self._end(beam, explain(index))
        if children and self._is_over(children[0]):
            parents, children = [], []
        self.beams = children
        return parents

    def hypotheses(self) -> list[Hypothesis]:
        """At most *num_beams*, best first."""
        return self._ended

    def _best_children(self, log_probs: Tensor) -> list[tuple[int, Beam]]:
        """The best children and the indices of their parents, best first."""
        tokens = top_tokens(log_probs, min(self.looked_at, log_probs.shape[-1]))
        scores = log_probs.gather(-1, tokens).double().numpy(force=True)
        totals = scores + np.array([beam.total for beam in self.beams])[:, None]
        ids, parents = tokens.numpy(), np.arange(len(totals))[:, None].repeat(totals.shape[1], axis=1)
        order = np.lexsort((ids.ravel(), parents.ravel(), -totals.ravel()))[: self.looked_at]
        return [
            (parent, self.beams[parent].extended(int(ids[parent, place]), float(scores[parent, place])))
            for parent, place in (divmod(int(cell), totals.shape[1]) for cell in order)
            if totals[parent, place] > -np.inf
        ]

    def _end(self, beam: Beam, finish: Finish) -> None:
        """Keep *beam* if it is one of the best that have ended."""
        score = self._score(beam.total, max(1, beam.length))
        self._ended.append(Hypothesis(beam, score, finish))
        # Stable: of equal scores the older one stays.
        self._ended.sort(key=lambda one: -one.score)
        del self._ended[self.num_beams :]

    def _score(self, total: float, length: int) -> float:
        return total / math.pow(length, self.length_penalty)

    def _is_over(self, best: Beam) -> bool:
        """Whether no beam can become better than what has ended, or none is to be waited for."""
        if len(self._ended) < self.num_beams:
            return False
        # One beam is greedy decoding.
        if self.early_stopping is True or self.num_beams == 1:
            return True
        longest = self.early_stopping == "never" and self.length_penalty > 0
        possible = self._score(best.total, self.stop.most if longest else best.length)
        return possible <= self._ended[-1].score
