"""The sampling pipeline: a chain of processors and a sampler."""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..history import History
from ..optional_protocols import (
    RanksTokens,
    runs_foreign_code,
    says_row_independent,
    stages_of,
    takes_argmax,
)
from ..protocols import NO_TOKEN_LEFT, NUMERIC_OVERFLOW, Finish, Processor, Sampler
from ..scores import Scores
from .candidates import Candidates
from .fast_sampler import FastSampler, fast_sampler
from .one_thread import one_thread
from .resolved_sampler import ResolvedSampler
from .scratch import Workspace
from .short_cuts import Pointwise
from .stages import Left, Stage, check_shape, dense, run

_LONGEST_NAME = 200
"""Characters of a stage in a finish."""

_LARGEST = 1e15
"""Bound below which several stages, each scaling by at most a million, do not overflow."""


def _resolved(sample: "SamplingPipeline") -> tuple[Stage, ...]:
    return tuple(map(Stage.of, stages_of(sample.processors)))


def _as_plan(plan: Any) -> tuple[Stage, ...]:
    if not isinstance(plan, tuple) or not all(isinstance(stage, Stage) for stage in plan):
        raise TypeError(f"'plan' must be that of another pipeline: got {plan!r}")
    return plan


@attrs.frozen(eq=False)
class SamplingPipeline:
    """
    Run *processors*, if any, and sample from the result with *sampler*.

    The result is that of calling every stage on the whole vocabulary, and then the sampler. Four
    optimisations do not change it:

    - The short cuts of stages and sampler (:mod:`~decodekit.decoding.sampling.short_cuts`) are used.
    - After a stage with a short cut to ``narrow``, such as a top-k, the ``local`` stages that follow,
      and a sampler that can sample ``among`` candidates, work on the survivors only.
    - For a sampler that ``takes_argmax``, final stages that ``keeps_argmax`` are omitted.
    - The processed scores are built when they are read.
    """

    processors: Processor | None
    sampler: Sampler

    draft_scores: bool = False
    """Whether a drafter that samples with this pipeline must return the scores too."""

    # Passed on by a pipeline of the same processors, so that they are analysed once.
    _plan: tuple[Stage, ...] = attrs.field(
        default=attrs.Factory(_resolved, takes_self=True), converter=_as_plan, kw_only=True, repr=False
    )

    stages: tuple[Processor, ...] = attrs.field(init=False, repr=False)
    """The processors, in order."""

    _resolved_sampler: ResolvedSampler = attrs.field(init=False, repr=False)
    """The sampler with its short cuts."""

    needed: int = attrs.field(init=False, repr=False)
    """
    The number of leading stages that affect the sample, unless the two largest logits are too close: 0 for a
    sampler that takes the argmax of what keeps it.
    """

    _runs_foreign_code: bool = attrs.field(init=False, repr=False)
    """Whether a part calls code of others, which may run a model of its own on torch's threads."""

    row_independent: bool = attrs.field(init=False, repr=False)
    """Whether the parts say that a row's result does not depend on which row of the batch it is."""

    _looks_for_largest: bool = attrs.field(init=False, repr=False)
    """Whether short cuts look for the largest logits, which takes long where many are equal."""

    fast: FastSampler | None = attrs.field(init=False, repr=False)
    """The fast path for chains that leave a few tokens; None if there is none."""

    @stages.default
    def _all_stages(self) -> tuple[Processor, ...]:
        return tuple(stage.processor for stage in self._plan)

    @_resolved_sampler.default
    def _resolve_sampler(self) -> ResolvedSampler:
        return ResolvedSampler.of(self.sampler)

    @needed.default
    def _count_needed(self) -> int:
        needed = len(self._plan)
        if takes_argmax(self.sampler):
            while needed and self._plan[needed - 1].keeps_argmax:
                needed -= 1
        return needed

    @_runs_foreign_code.default
    def _look_for_foreign_code(self) -> bool:
        return any(map(runs_foreign_code, (*self.stages, self.sampler)))

    @row_independent.default
    def _parts_say_so(self) -> bool:
        parts = (self.sampler,) if self.processors is None else (self.processors, self.sampler)
        return all(map(says_row_independent, parts))

    @_looks_for_largest.default
    def _compares_logits(self) -> bool:
        return self.needed < len(self._plan) or not all(
            isinstance(stage.cuts, Pointwise) for stage in self._plan
        )

    @fast.default
    def _fast_sampler(self) -> FastSampler | None:
        return fast_sampler([stage.cuts for stage in self._plan], self._resolved_sampler)

    def __call__(
        self,
        logits: Tensor,
        history: History,
        rows: Sequence[int] | None = None,
        columns: Sequence[int] | None = None,
    ) -> tuple[Tensor, Scores]:
        """
        Sample in each column.

        Args:
            logits: Raw logits, ``[batch, width, vocab]``; not modified.

            history: The tokens before each column.

            rows: The rows to sample; None for all. The scores of the others are undefined.

            columns: The number of columns of each row, at least 1, where the rows have drafts of unequal
                length; those after them are padding, whose result may be that of any. None: all.

        Returns:
            Ids ``[batch, width]``, -1 in other rows and in a column whose scores are all ``-inf`` or
            NaN, and the processed scores.

        Raises:
            ValueError: A part returned a wrong shape.
        """
        with contextlib.nullcontext() if self._runs_foreign_code else one_thread(logits.numel()):
            if self.fast is not None and (found := self.fast(logits, history, rows, columns)) is not None:
                return found
            if rows and self.row_independent:
                return self._run_rows(logits, history, rows, columns)
            if self._looks_for_largest:
                logits = _without_padding(logits, rows, columns)
            ids, scores = self.run_stages(logits, history)
        return ids if rows is None else _only(ids, rows), scores

    def _run_rows(
        self, logits: Tensor, history: History, rows: Sequence[int], columns: Sequence[int] | None
    ) -> tuple[Tensor, Scores]:
        """A call without the :attr:`fast` path, of the *rows* alone."""
        index = torch.tensor(rows)
        of_rows = logits.index_select(0, index.to(logits.device))
        if self._looks_for_largest:
            of_rows = _without_padding(of_rows, None, columns and [columns[row] for row in rows])
        some, scores = self.run_stages(of_rows, history.rows(index))
        ids = torch.full(logits.shape[:2], -1)
        ids[index] = some
        return ids, Scores(partial(_in_rows, scores, index, logits.shape))

    def run_stages(self, logits: Tensor, history: History) -> tuple[Tensor, Scores]:
        """A call without the :attr:`fast` path."""
        seen = _within(history)
        needed, skipped = self._plan[: self.needed], self._plan[self.needed :]
        work, raw = Workspace(), _full_precision(logits.detach() if logits.requires_grad else logits)
        try:
            left = run(needed, raw, seen, work)
            if skipped and not _has_clear_argmax(left):
                left, skipped = run(skipped, left, seen, work), ()
            ids = self._select(left, history, work)
            if not isinstance(left, Candidates) and work.holds(left):
                # Tensors in the workspace must not leave the call.
                left, skipped = raw, self._plan
        finally:
            work.close()
        return ids, Scores(lambda: dense(run(skipped, left, seen)))

    def _select(self, left: Left, history: History, work: Workspace) -> Tensor:
        sampler = self._resolved_sampler
        if isinstance(left, Candidates) and sampler.among is not None:
            ids, best = sampler.among(left, history), left.logits.numpy(force=True).max(axis=-1)
        else:
            left = dense(left)
            # A custom sampler may keep a reference to its input.
            ids = sampler(left.clone() if sampler.may_keep and work.holds(left) else left, history)
            check_shape("sampler", self.sampler, ids, left.shape[:2])
            best = _at(left, ids)
        # Comparisons with NaN are false, so NaN never yields a token.
        return ids if (best > -np.inf).all() else ids.masked_fill(torch.from_numpy(~(best > -np.inf)), -1)

    def with_sampler(self, sampler: Sampler, draft_scores: bool = False) -> "SamplingPipeline":
        """A pipeline of the same processors and another *sampler*."""
        return SamplingPipeline(self.processors, sampler, draft_scores, plan=self._plan)

    def scores(self, raw: Scores, history: History) -> Scores:
        """The processed scores, from *raw* logits, of tokens that were sampled elsewhere."""
        return Scores(lambda: self.after(len(self.stages), raw.logits.detach(), history))

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """
        The top choices of each column, the sampled token first.

        Args:
            logits: As in a call.

            history: As in a call.

            n: Number of choices.

        Returns:
            Distinct ids ``[batch, width, n]``; -1 where no more tokens are possible.

        Raises:
            ValueError: The sampler has no ``top_choices``.
        """
        if not isinstance(self.sampler, RanksTokens):
            raise ValueError(f"a tree's children take a sampler that has top_choices(): got {self.sampler!r}")
        ids, scores = self(logits, history)
        left = min(n, logits.shape[-1])
        others = self.sampler.top_choices(scores.logits, history, left)
        possible = (scores.logits.gather(-1, others) > -torch.inf) & (ids[..., None] >= 0)
        return torch.nn.functional.pad(others.masked_fill(~possible, -1), (0, n - left), value=-1)

    def after(self, stages: int, logits: Tensor, history: History) -> Tensor:
        """The logits after the first *stages* stages, ``[batch, width, vocab]``; arguments as in a call."""
        return dense(run(self._plan[:stages], _full_precision(logits), _within(history)))

    def finish_without_token(self, logits: Tensor, history: History, row: int, column: int) -> Finish:
        """
        Why no token is possible in *column* of *row*; arguments as in a call.

        Returns:
            ``"numeric_overflow"`` if the raw logits have NaN, else ``"no_token_left"``; matched is the name
            of the stage that left no token.
        """
        if logits[row, column].isnan().any():
            return Finish(NUMERIC_OVERFLOW, "the decoder, which gave NaN")
        if not _has_possible_token(logits[row, column]):
            return Finish(NO_TOKEN_LEFT, "the decoder")
        for stage in self.stages:
            logits = stage(logits, history)
            if not _has_possible_token(logits[row, column]):
                why = ", which gave NaN" if logits[row, column].isnan().any() else ""
                return Finish(NO_TOKEN_LEFT, f"{_shortened(repr(stage))}{why}")
        return Finish(NO_TOKEN_LEFT, _shortened(repr(self.sampler)))


def _shortened(text: str) -> str:
    """*text* without its end if it is long, such as that of a stage with many ids."""
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}..."


def _only(ids: Tensor, rows: Sequence[int]) -> Tensor:
    """*ids* ``[batch, width]`` of *rows*, and -1 in the others."""
    others = torch.ones(len(ids), 1, dtype=torch.bool)
    others[list(rows)] = False
    return ids.masked_fill(others, -1)


def _in_rows(scores: Scores, index: Tensor, shape: Sequence[int]) -> Tensor:
    """*scores* in the rows of *index*, among others that are ``-inf``."""
    whole = scores.logits.new_full(shape, -torch.inf)
    whole[index] = scores.logits
    return whole


def _without_padding(logits: Tensor, rows: Sequence[int] | None, columns: Sequence[int] | None) -> Tensor:
    """
    *logits* with others in place of those that are not sampled.

    A decoder that does not compute padding gives equal logits for it.
    """
    idle = set(range(len(logits))).difference(rows) if rows else set[int]()
    short = [] if columns is None else [row for row, last in enumerate(columns) if last < logits.shape[1]]
    if not idle and not short:
        return logits
    # Not an index, which copies number by number.
    filled = logits.clone()
    for row in short:
        last = cast(Sequence[int], columns)[row]
        filled[row, last:] = logits[row, last - 1]
    for row in idle:
        filled[row] = filled[cast(Sequence[int], rows)[0]]
    return filled


def _at(logits: Tensor, ids: Tensor) -> NDArray[Any]:
    """The logit of each column's sampled token, ``[batch, width]``."""
    if logits.device.type != "cpu":
        return logits.gather(-1, ids[..., None]).squeeze(-1).numpy(force=True)
    values, sampled = logits.numpy(force=True), ids.numpy()
    # Numpy would take -1 as the last index.
    if ((sampled < 0) | (sampled >= values.shape[-1])).any():
        raise ValueError(f"'sampler' must give ids 0 to {values.shape[-1] - 1}: got {sampled.tolist()}")
    best = values.reshape(-1, values.shape[-1])[np.arange(sampled.size), sampled.ravel()]
    return np.asarray(best.reshape(sampled.shape))


def _within(history: History) -> History:
    """*history* cut to the longest column, to save time."""
    ids = history.ids[..., : max(1, int(history.length.numpy().max()))]
    return History(ids, history.length, history.prompt, history.random_stream)


def _full_precision(logits: Tensor) -> Tensor:
    """Half precision converted to float32, which is exact: numpy does not support all half types."""
    if logits.dtype is torch.float32:
        return logits
    return logits.float() if torch.finfo(logits.dtype).bits < 32 else logits


def _has_clear_argmax(left: Left) -> bool:
    """Whether each column's largest logit exceeds the others by more than rounding, far from overflow."""
    logits = (left.logits if isinstance(left, Candidates) else left).numpy(force=True)
    best = logits.max(axis=-1, keepdims=True)
    if not (abs(best) < _LARGEST).all():
        return False
    close = logits >= best - (abs(best) + 16) * 2.0**-18
    return bool((np.count_nonzero(close, axis=-1) == 1).all())


def _has_possible_token(logits: Tensor) -> bool:
    return bool((logits > -torch.inf).any() and not logits.isnan().any())
