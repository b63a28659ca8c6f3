"""Short cuts of min-p."""

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.sampling.candidates import Candidates
from ...decoding.sampling.short_cuts import register
from ...decoding.sampling.survivors import survivors
from ..parameter import FLOAT32, per_row
from ..truncation.min_p import MinP


@attrs.frozen(eq=False)
class FastMinP:
    """:class:`~decodekit.processors.MinP`, computed on its survivors alone."""

    stage: MinP

    def narrow(self, logits: Tensor, history: History) -> Tensor | Candidates:
        """See :class:`~decodekit.decoding.sampling.short_cuts.GivesCandidates`."""
        best = logits.amax(dim=-1, keepdim=True)
        p = torch.as_tensor(per_row("p", self.stage.p, logits), dtype=logits.dtype)
        # For subnormal floats, exp rounds by more than the margin subtracted from the floor.
        tiny = ((p > 0) & (p < FLOAT32.tiny)).any()
        if self.stage.min_tokens > 1 or tiny or not best.isfinite().all():
            return self.stage(logits, history)
        # Lowered by more than the rounding error; the call on the survivors decides exactly.
        left = survivors(logits, best + p.log() - 1e-5 * (best.abs() + 1))
        if left is None:
            return self.stage(logits, history)
        return attrs.evolve(left, logits=self.stage(left.logits, history))


register(MinP, FastMinP)
