"""Short cuts of greedy sampling."""

import attrs
from torch import Tensor

from ..history import History
from .candidates import Candidates
from .greedy import Greedy
from .short_cuts import register


@attrs.frozen(eq=False)
class GreedyShortCuts:
    """:class:`~.greedy.Greedy` among candidates."""

    sampler: Greedy

    def among(self, candidates: Candidates, history: History) -> Tensor:
        """See :class:`~.short_cuts.SamplesAmong`."""
        best = candidates.logits.argmax(dim=-1, keepdim=True)
        return candidates.ids.gather(-1, best).squeeze(-1)


register(Greedy, GreedyShortCuts)
