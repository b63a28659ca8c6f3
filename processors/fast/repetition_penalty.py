"""Short cuts of the repetition penalty: only the tokens that occurred are read and written."""

from typing import cast

import attrs
import numpy as np
from torch import Tensor

from ...decoding.history import History
from ...decoding.sampling.compiled.operation import Kind, Operation
from ...decoding.sampling.few_tokens import Cell, Few
from ...decoding.sampling.short_cuts import register
from ..numerics.penalty_scaling import penalty_scaling
from ..numerics.token_occurrences import apply_to_tokens, seen_slots
from ..parameter import is_scalar
from ..penalties.repetition_penalty import RepetitionPenalty
from .host_history import column_ids, counted_tokens, ids_with_logits, occurring_indices


@attrs.frozen(eq=False)
class FastRepetitionPenalty:
    """:class:`~decodekit.processors.RepetitionPenalty` in given memory, and of a few tokens."""

    stage: RepetitionPenalty

    @property
    def _is_off(self) -> bool:
        stage = self.stage
        return is_scalar(stage.penalty, 1.0) or (is_scalar(stage.window, 0) and is_scalar(stage.fade, 0))

    @property
    def _one_for_all_rows(self) -> bool:
        """Whether it is one penalty of the logits themselves, in one window without a fade."""
        stage = self.stage
        scalars = not (isinstance(stage.penalty, Tensor) or isinstance(stage.window, Tensor))
        return scalars and is_scalar(stage.fade, 0) and not stage.shift_safe

    def into(self, logits: Tensor, history: History, out: Tensor) -> Tensor:
        """See :class:`~decodekit.decoding.sampling.short_cuts.WritesInto`."""
        stage = self.stage
        if not self._is_off and not self._one_for_all_rows:
            if not is_scalar(stage.fade, 0):
                return out.copy_(stage(logits, history))
            slots = seen_slots(history, logits, stage.include_prompt, stage.window)
            formula = penalty_scaling(stage.penalty, logits, stage.shift_safe)
            return apply_to_tokens(logits, history, slots, formula, out)
        if out is not logits:
            out.copy_(logits)
        if not self._is_off:
            self._penalise(out, history)
        return out

    def _penalise(self, logits: Tensor, history: History) -> None:
        """Penalise *logits* in place."""
        scores, penalty = logits.numpy(), self.stage.penalty
        window = cast("int | None", self.stage.window)
        for row, column, ids in column_ids(history, self.stage.include_prompt, window):
            counting = ids_with_logits(ids, logits.shape[-1])
            seen = scores[row, column][counting]
            # Repeated tokens are written repeatedly with the same value. Overflow gives inf.
            with np.errstate(over="ignore"):
                penalised = np.where(seen < 0, seen * penalty, seen / penalty)
            scores[row, column][counting] = penalised

    @property
    def takes_few(self) -> bool:
        """Whether :meth:`of_few` supports these parameters: one penalty >= 1 for all rows."""
        return self._one_for_all_rows and 1.0 <= cast("float", self.stage.penalty) <= 1e3

    def of_few(self, few: Few, cell: Cell) -> Few:
        """See :class:`~decodekit.decoding.sampling.short_cuts.Pointwise`."""
        ids, scores = few.arrays()
        penalty = self.stage.penalty
        counting = counted_tokens(cell, self.stage.include_prompt, cast("int | None", self.stage.window))
        at = occurring_indices(ids, counting, cell.vocab)
        if not len(at):
            return few
        seen, scores = scores.take(at), scores.copy()
        # With a penalty >= 1 the smaller of the two is right for either sign.
        scores[at] = np.minimum(seen * penalty, seen / penalty)
        return Few(ids, scores)

    def at_most(self, logit: np.float32) -> np.float32:
        """See :class:`~decodekit.decoding.sampling.short_cuts.Pointwise`."""
        return logit

    def operation(self) -> Operation:
        """See :class:`~decodekit.decoding.sampling.compiled.operation.HasOperation`."""
        stage, window = self.stage, cast("int | None", self.stage.window)
        last = -1 if window is None else window
        return Operation(Kind.PENALISE_OCCURRING, cast("float", stage.penalty), last, stage.include_prompt)


register(RepetitionPenalty, FastRepetitionPenalty)
