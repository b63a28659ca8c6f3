"""Drafting: what one request asks of its drafter, and the draft that fits."""

from collections.abc import Sequence
from typing import cast

import attrs
import numpy as np
import torch
from torch import Tensor

from ..history import History
from ..optional_protocols import (
    CatchesUp,
    EndsDrafts,
    ForeseesTokens,
    GivesEvidence,
    PausesDrafts,
    WeighsDelays,
    WeighsEvidence,
    compares_scores,
    takes_trees,
)
from ..protocols import DecoderShape, Draft, Drafter, DraftLength, Verification
from ..sampling.pipeline import SamplingPipeline
from ..trees import draft_depths, pruned
from ..validation import is_whole


@attrs.frozen(eq=False)
class Drafting:
    """A drafter with its draft length, verification and sampling pipeline."""

    drafter: Drafter
    length: int | DraftLength
    verification: Verification
    pipeline: SamplingPipeline
    """The target's."""

    shape: DecoderShape
    """The target's."""

    tree_widths: tuple[int, ...]
    """The target's."""

    _compares_scores: bool = attrs.field(init=False, repr=False)

    weighs_delays: bool = attrs.field(init=False, repr=False)
    """Whether the draft length depends on the rows that wait for the forward."""

    pauses: bool = attrs.field(init=False, repr=False)
    """Whether the draft length does without evidence for some steps."""

    weighs_evidence: bool = attrs.field(init=False, repr=False)
    """Whether the draft length depends on the drafter's evidence."""

    foresees: bool = attrs.field(init=False, repr=False)
    """Whether the drafter tells the first tokens of its drafts."""

    catches_up: bool = attrs.field(init=False, repr=False)
    """Whether the drafter has tokens of its own to feed."""

    ends_drafts: bool = attrs.field(init=False, repr=False)
    """Whether the draft length ends drafts early."""

    @_compares_scores.default
    def _resolve_comparison(self) -> bool:
        return compares_scores(self.verification)

    @weighs_delays.default
    def _resolve_delays(self) -> bool:
        return isinstance(self.length, WeighsDelays)

    @pauses.default
    def _resolve_pauses(self) -> bool:
        return isinstance(self.length, PausesDrafts)

    @weighs_evidence.default
    def _resolve_evidence(self) -> bool:
        return isinstance(self.length, WeighsEvidence) and isinstance(self.drafter, GivesEvidence)

    @foresees.default
    def _resolve_first_tokens(self) -> bool:
        return isinstance(self.drafter, ForeseesTokens)

    @catches_up.default
    def _resolve_catching_up(self) -> bool:
        return isinstance(self.drafter, CatchesUp)

    @ends_drafts.default
    def _resolve_endings(self) -> bool:
        return isinstance(self.length, EndsDrafts)

    def lengths(self, rows: int, delayed: int, evidence: tuple[int, ...] | None = None) -> list[int]:
        """
        The draft length for each of *rows* rows.

        Args:
            rows: Those that may draft.

            delayed: The number of other rows that wait for the same forward.

            evidence: Of the drafts of *rows*, then 0 for each other row; None if no length depends on it.

        Raises:
            ValueError: The policy's answer is not a length for each row.
        """
        if isinstance(self.length, int):
            return [self.length] * rows
        most = self.length.most
        if evidence is None:
            length = (
                cast(WeighsDelays, self.length).length_beside(rows, delayed)
                if self.weighs_delays and delayed
                else self.length(rows)
            )
            return [self._checked(length, most)] * rows
        said = cast(WeighsEvidence, self.length).weigh(evidence)
        if not isinstance(said, Sequence) or len(said) != len(evidence):
            raise ValueError(
                f"draft lengths by evidence must be {len(evidence)} numbers, one a row: got {said!r}"
            )
        return [self._checked(each, most) for each in said[:rows]]

    def _checked(self, length: int, most: int) -> int:
        if not is_whole(length) or not 0 <= length <= most:
            raise ValueError(f"a draft length must say whole numbers >= 0 and <= {most}: got {length!r}")
        return int(length)

    def sampling(self, now: History) -> SamplingPipeline:
        """What the drafter samples with, given the tokens so far."""
        sampler = self.verification.drafting(self.pipeline.sampler, now.length[:, 0])
        if sampler is self.pipeline.sampler and not self._compares_scores:
            return self.pipeline
        return self.pipeline.with_sampler(sampler, self._compares_scores)

    def fitted(self, draft: Draft, budget: Tensor) -> Draft:
        """
        *draft* without tokens beyond a row's *budget*, invalid or unscored ones, and their descendants.

        Raises:
            ValueError: A tree that the verification or the target does not take.
        """
        # NumPy's operations on so few numbers take a third of the time of torch's.
        ids = draft.ids.numpy()
        fits = (ids >= 0) & (ids < self.shape.vocab_size)
        if draft.parents is not None:
            self._require_trees()
            shallow = torch.from_numpy(fits) & (draft_depths(draft) <= budget[:, None])
            # The row's last token takes a column of the tree too, and of the chain.
            left = pruned(draft, shallow, self.tree_widths[-1] - 1)
            return left if left.ids.shape[1] else Draft(left.ids)
        # A tree drafter may return a chain, for which its budget may exceed the scored width.
        most = np.minimum(budget.numpy(), self.shape.scored_width - 1)
        kept = np.logical_and.accumulate(fits & (np.arange(ids.shape[1]) < most[:, None]), axis=1)
        columns = int(kept.sum(axis=1).max())
        scores = None if draft.scores is None else draft.scores[:, :columns]
        return Draft(torch.from_numpy(np.where(kept, ids, -1)[:, :columns]), scores)

    def _require_trees(self) -> None:
        if not takes_trees(self.verification):
            raise ValueError(f"{self.verification!r} takes no trees: got one from {self.drafter!r}")
        if not self.tree_widths:
            raise ValueError(f"the decoder must score trees: got one from {self.drafter!r}")
