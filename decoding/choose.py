"""A chain of processors and a selection, as one."""

import attrs
import torch
from torch import Tensor

from .history import History
from .protocols import Processor, Selection


@attrs.frozen(eq=False)
class Choose:
    """Run *processors*, if any, and let *selection* choose from what they leave."""

    processors: Processor | None
    selection: Selection

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Tensor]:
        """
        Choose in each column.

        Args:
            logits: Raw logits, ``[batch, width, vocab]``; not modified.

            history: The tokens before each column.

        Returns:
            Ids ``[batch, width]``, -1 in a column whose scores are all ``-inf`` or NaN, and the
            processed scores, ``[batch, width, vocab]``.
        """
        scores = logits if self.processors is None else self.processors(logits, history)
        ids = self.selection(scores, history)
        best = scores.gather(-1, ids[..., None]).squeeze(-1)
        # A comparison with NaN is false as well, so garbage is never taken for a choice.
        return torch.where(best > -torch.inf, ids, -1), scores

    def emptied_by(self, logits: Tensor, history: History) -> str:
        """Name the stage that leaves no token in the one row and column of *logits*, ``[1, 1, vocab]``."""
        if not (logits > -torch.inf).any():
            return "the decoder"
        alone = () if self.processors is None else (self.processors,)
        for stage in getattr(self.processors, "processors", alone):
            logits = stage(logits, history)
            if not (logits > -torch.inf).any():
                return repr(stage)
        return repr(self.selection)
