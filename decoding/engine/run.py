"""One request of the decoding loop: its parts, and what becomes of a scored step."""

from typing import TYPE_CHECKING

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..history import History
from ..optional_protocols import MeasuresGap, RowLimit, TokenCode, reads_target_tokens, tree_nodes
from ..protocols import Draft, Finish, StopCondition, Verification
from ..results.events import MAX_LENGTH, StepOutput
from ..results.timers import Phase, Timers
from ..sampling.pipeline import SamplingPipeline
from ..scores import Scores
from ..stopping.composition import by_token, most_new_tokens
from ..trees import Branch, target_branch, tokens_ahead
from .exact_match_verification import ExactMatch
from .windows import chain_window, columns_of

if TYPE_CHECKING:
    from .drafting import Drafting
    from .logprob_recorder import LogprobRecorder

Ints = NDArray[np.int64]


@attrs.define(eq=False)
class Accepted:
    """What a run made of one scored step. Treat as immutable (not frozen, for speed)."""

    outputs: list[StepOutput]
    """One for each row that was active."""

    added: list[int]
    """The tokens added to each row, 0 to an idle one."""

    num_accepted: list[int]
    """The accepted draft tokens of each row."""


@attrs.frozen(eq=False, kw_only=True)
class Run:
    """
    Everything that is constant for one request, and what becomes of its scored steps.

    It samples, verifies, stops, records and counts. It never feeds: the
    :class:`~.decode_loop.DecodeLoop` does. Its rows are numbered from 0, wherever they sit.
    """

    pipeline: SamplingPipeline
    stop: StopCondition
    verification: Verification
    timers: Timers

    drafting: "Drafting | None" = None
    """Asks the drafter, if there is one."""

    gap: MeasuresGap | None = None
    """The sampler that measures the margin of each column's token, if that is recorded."""

    recorder: "LogprobRecorder | None" = None
    """Records log-probabilities, if requested."""

    on_device: bool = False
    """Whether the decoder's own forwards sample as :attr:`pipeline` does."""

    first_row: int = 0
    """The number of its first row in the statistics."""

    # Read once per run: conditions build theirs on every access.
    _finishes: tuple[Finish, ...] = attrs.field(init=False, repr=False)
    _code: TokenCode | None = attrs.field(init=False, repr=False)
    most_new_tokens: RowLimit | None = attrs.field(init=False, repr=False)
    """The most new tokens of a row; None if the stop condition does not say."""

    _reads_target_tokens: bool = attrs.field(init=False, repr=False)
    _is_exact_match: bool = attrs.field(init=False, repr=False)
    _sampling: Phase = attrs.field(init=False, repr=False)
    _stopping: Phase = attrs.field(init=False, repr=False)

    @_finishes.default
    def _finishes_of_the_stop(self) -> tuple[Finish, ...]:
        return self.stop.finishes

    @_code.default
    def _code_by_token(self) -> TokenCode | None:
        return by_token(self.stop)

    @most_new_tokens.default
    def _limit_of_the_stop(self) -> RowLimit | None:
        return most_new_tokens(self.stop)

    @_reads_target_tokens.default
    def _resolve_reading(self) -> bool:
        return reads_target_tokens(self.verification)

    @_is_exact_match.default
    def _resolve_verification(self) -> bool:
        # A subclass may do otherwise.
        return type(self.verification) is ExactMatch

    @_sampling.default
    def _sampling_phase(self) -> Phase:
        return self.timers.phase("sample")

    @_stopping.default
    def _stopping_phase(self) -> Phase:
        return self.timers.phase("stop")

    def samples_on_device(self, draft: Draft) -> bool:
        """Whether to sample on the device; not if the verification of *draft* reads scores only."""
        return self.on_device and (self._reads_target_tokens or not draft.ids.shape[1])

    @property
    def may_leave_device(self) -> bool:
        """Whether a draft may keep the device from sampling in some steps."""
        return self.drafting is not None and not self._reads_target_tokens

    def require_shareable(self) -> None:
        """
        Refuse parts that cannot run beside other requests.

        Raises:
            ValueError: The drafter grows trees.
        """
        if self.drafting is not None and tree_nodes(self.drafting.drafter) is not None:
            raise ValueError(
                "requests that share a decoder take no draft trees, whose columns would be others': "
                f"got {self.drafting.drafter!r}"
            )

    def accept(
        self,
        chosen: Tensor | None,
        raw: Scores,
        seen: History,
        now: History,
        draft: Draft,
        active: list[int],
    ) -> Accepted:
        """
        Sample from a scored step, verify its draft, stop, and record.

        Args:
            chosen: The tokens that the device sampled, ``[rows, n + 1]``, which are not sampled again;
                None if it sampled none.

            raw: Raw logits ``[rows, n + 1, vocab]``.

            seen: The tokens before each of their columns.

            now: The tokens so far, width 1. The new tokens are written to its ids.

            draft: The draft, ``[rows, n]``.

            active: The rows to go on with; the others are left as they are.
        """
        ids, length = now.ids.numpy()[:, 0], now.length.numpy()[:, 0].tolist()
        branch, window, added = Branch(draft), seen, [0] * len(length)
        rows = active if len(active) < len(length) else None
        with self._sampling:
            tokens, scores = (
                self.pipeline(raw.logits, seen, rows, columns_of(draft))
                if chosen is None
                else (chosen, self.pipeline.scores(raw, seen))
            )
            if draft.parents is not None:
                branch = target_branch(draft, tokens)
                tokens, scores = branch.gather(tokens), branch.scores(scores)
                window = chain_window(now, branch.draft)
            accepted, next_ids = self._verified(branch.draft, tokens, scores, window)
        for row in active:
            added[row] = accepted[row]
            if next_ids[row] >= 0:
                ids[row, length[row] + accepted[row]] = next_ids[row]
                added[row] += 1
        with self._stopping:
            codes = self._until_stop(now, ids, length, added, scores, tokens.shape[1])
        if self.gap is not None:
            self._record_gap(self.gap, scores, window, added)
        new = [tuple(ids[row, length[row] : length[row] + added[row]].tolist()) for row in range(len(added))]
        logprobs = None
        if self.recorder is not None:
            with self.timers.phase("logprobs"):
                logprobs = self.recorder.of_new_tokens(raw.logits, seen, branch, scores, new)
        outputs = []
        for row in active:
            count, code = added[row], codes[row]
            if code:
                finish: Finish | None = self._finishes[code - 1]
            elif next_ids[row] < 0:
                column = branch.column(row, count)
                finish = self.pipeline.finish_without_token(raw.logits, seen, row, column)
            else:
                finish = MAX_LENGTH if length[row] + count == ids.shape[1] else None
            outputs.append(StepOutput(row, new[row], finish, None if logprobs is None else logprobs[row]))
        self._count(length, now.prompt.tolist(), draft, active, added, accepted, codes)
        return Accepted(outputs, added, accepted)

    def _verified(
        self, draft: Draft, tokens: Tensor, scores: Scores, window: History
    ) -> tuple[list[int], list[int]]:
        """The accepted draft tokens of each row, and the token that follows them."""
        if self._is_exact_match and not draft.ids.shape[1]:
            # Without draft tokens there is nothing to match.
            return [0] * len(tokens), [row[0] for row in tokens.tolist()]
        accepted, following = self.verification(draft, tokens, scores, window)
        return accepted.tolist(), following.tolist()

    def _until_stop(
        self, now: History, ids: Ints, length: list[int], added: list[int], scores: Scores, width: int
    ) -> list[int]:
        """
        Cut each row's new tokens at its first stop.

        Args:
            now: The tokens before the step.

            ids: Its ids, ``[rows, capacity]``.

            length: Its lengths.

            added: The number of each row's new tokens, which is lowered.

            scores: Their processed logits, *width* columns.

            width: The number of columns.

        Returns:
            Each row's stop code, 0 for none.
        """
        codes = [0] * len(added)
        if self._code is not None:
            prompt = now.prompt.tolist()
            for row, count in enumerate(added):
                for end in range(length[row] + 1, length[row] + count + 1):
                    code = self._code(ids.item(row, end - 1), end, prompt[row], row)
                    if code:
                        codes[row], added[row] = code, end - length[row]
                        break
            return codes
        gained = np.array(added)[:, None]
        columns = np.arange(1, width + 1)
        after = now.at(torch.from_numpy(now.length.numpy() + np.minimum(columns, gained)))
        found = known_codes(self.stop(scores, after), after, len(self._finishes))
        for row, column in zip(*(np.where(columns <= gained, found, 0)).nonzero(), strict=True):
            if not codes[row]:
                codes[row], added[row] = int(found[row, column]), int(column) + 1
        return codes

    def _record_gap(self, sampler: MeasuresGap, scores: Scores, window: History, added: list[int]) -> None:
        with self.timers.phase("gap"):
            gap = sampler.gap(scores.logits, window).numpy()
            kept = np.arange(gap.shape[1]) < np.array(added)[:, None]
            self.timers.statistics.record_gaps(gap[kept].tolist())

    def _count(
        self,
        length: list[int],
        prompt: list[int],
        draft: Draft,
        active: list[int],
        added: list[int],
        accepted: list[int],
        codes: list[int],
    ) -> None:
        """Count the new tokens of the *active* rows; a row's first token is no verification."""
        statistics = self.timers.statistics
        ahead = tokens_ahead(draft).tolist() if draft.ids.shape[1] else [0] * len(added)
        for row in active:
            if length[row] <= prompt[row]:
                statistics.record_first(added[row])
                continue
            # Draft tokens after a stop within the accepted ones are not counted.
            stopped = codes[row] > 0 and added[row] <= accepted[row]
            drafted = added[row] if stopped else ahead[row]
            statistics.record(added[row], drafted, min(accepted[row], drafted), self.first_row + row)


def known_codes(codes: Tensor, after: History, finishes: int) -> NDArray[np.int64]:
    """
    *codes* as an array, checked for a stop condition with so many *finishes*.

    Raises:
        ValueError: The shape is not that of *after*, or a code is unknown.
    """
    shape = after.length.shape
    if isinstance(codes, Tensor) and codes.shape == shape:
        known: NDArray[np.int64] = codes.numpy(force=True)
        if ((known >= 0) & (known <= finishes)).all():
            return known
    raise ValueError(
        f"'stop' must give codes 0 to {finishes}, one for each finish, of the shape {list(shape)}: "
        f"got {codes!r}"
    )
