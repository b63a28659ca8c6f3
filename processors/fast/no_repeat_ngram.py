"""Short cuts of no repeated n-grams: only the forbidden tokens are written."""

from typing import cast

import attrs
import numpy as np
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.sampling.short_cuts import register
from ..constraints.no_repeat_ngram import NoRepeatNgram
from ..numerics.token_occurrences import forbid_tokens, repeated_ngram_ends
from .host_history import column_ids, ids_with_logits


@attrs.frozen(eq=False)
class FastNoRepeatNgram:
    """:class:`~decodekit.processors.NoRepeatNgram` in given memory."""

    stage: NoRepeatNgram

    def into(self, logits: Tensor, history: History, out: Tensor) -> Tensor:
        """See :class:`~decodekit.decoding.sampling.short_cuts.WritesInto`."""
        n, window, include_prompt = self.stage.n, self.stage.window, self.stage.include_prompt
        if isinstance(n, Tensor) or isinstance(window, Tensor):
            largest = max(int(torch.as_tensor(n).max()), 1)
            ends = repeated_ngram_ends(history, logits, n, include_prompt, window, largest)
            return forbid_tokens(logits, history, ends, out)
        if out is not logits:
            out.copy_(logits)
        if n > 0:
            self._forbid(out, history, n)
        return out

    def _forbid(self, logits: Tensor, history: History, n: int) -> None:
        """Forbid the repetition of *n*-grams in place."""
        scores, before, window = logits.numpy(), n - 1, cast("int | None", self.stage.window)
        for row, column, ids in column_ids(history, self.stage.include_prompt, window):
            starts = max(len(ids) - before, 0)
            begun = np.ones(starts, dtype=bool)
            for offset in range(before if starts else 0):
                begun &= ids[offset : offset + starts] == ids[starts + offset]
            scores[row, column][ids_with_logits(ids[before:][begun], logits.shape[-1])] = -np.inf


register(NoRepeatNgram, FastNoRepeatNgram)
