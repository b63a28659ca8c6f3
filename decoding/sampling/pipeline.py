"""The sampling pipeline: a chain of processors and a sampler."""

from collections.abc import Callable, Iterable
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..history import History
from ..optional_protocols import (
    KeepsArgmax,
    Local,
    RanksTokens,
    Seeded,
    TakesArgmax,
    WritesInto,
    offers_short_cuts,
    stages_of,
)
from ..protocols import NO_TOKEN_LEFT, NUMERIC_OVERFLOW, Finish, Processor, Sampler
from ..scores import Scores
from . import noise
from .candidates import Candidates, GivesCandidates, SamplesAmong, TakesCandidates
from .fast_sampling import FastSampler, fast_sampler
from .scratch import Workspace

Left = Tensor | Candidates
"""Logits of the whole vocabulary, or of the remaining candidates."""


@attrs.frozen(eq=False)
class _Stage:
    """A processor with its declarations and short cuts."""

    processor: Processor
    keeps_argmax: bool
    local: bool
    may_keep: bool
    """Whether it may keep a reference to its input; unknown for a processor without declarations."""

    into: Callable[[Tensor, History, Tensor], Tensor] | None
    narrow: Callable[[Tensor, History], Left] | None
    among: Callable[[Candidates, History], Candidates] | None

    @classmethod
    def of(cls, part: Processor) -> "_Stage":
        short = offers_short_cuts(part)
        return cls(
            part,
            keeps_argmax=isinstance(part, KeepsArgmax) and part.keeps_argmax,
            local=isinstance(part, Local) and part.local,
            may_keep=not isinstance(part, Local),
            into=part.into if short and isinstance(part, WritesInto) else None,
            narrow=part.narrow if short and isinstance(part, GivesCandidates) else None,
            among=part.among if short and isinstance(part, TakesCandidates) else None,
        )


def _resolved(sample: "SamplingPipeline") -> tuple[_Stage, ...]:
    return tuple(map(_Stage.of, stages_of(sample.processors)))


@attrs.frozen(eq=False)
class SamplingPipeline:
    """
    Run *processors*, if any, and sample from the result with *sampler*.

    The result is that of running every stage on the whole vocabulary. Three optimisations do not
    change it:

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
    _plan: tuple[_Stage, ...] = attrs.field(
        default=attrs.Factory(_resolved, takes_self=True), kw_only=True, repr=False
    )

    stages: tuple[Processor, ...] = attrs.field(init=False, repr=False)
    """The processors, in order."""

    _among: Callable[[Candidates, History], Tensor] | None = attrs.field(init=False, repr=False)
    """The sampler's short cut for candidates."""

    _needed: int = attrs.field(init=False, repr=False)
    """The number of stages that affect the sample, unless the two largest logits are too close."""

    fast: FastSampler | None = attrs.field(init=False, repr=False)
    """The fast path for chains that leave a few tokens; None if there is none."""

    @stages.default
    def _all_stages(self) -> tuple[Processor, ...]:
        return tuple(stage.processor for stage in self._plan)

    @_among.default
    def _among_candidates(self) -> Callable[[Candidates, History], Tensor] | None:
        if offers_short_cuts(self.sampler) and isinstance(self.sampler, SamplesAmong):
            return self.sampler.among
        return None

    @_needed.default
    def _count_needed(self) -> int:
        needed = len(self._plan)
        if isinstance(self.sampler, TakesArgmax) and self.sampler.takes_argmax:
            while needed and self._plan[needed - 1].keeps_argmax:
                needed -= 1
        return needed

    @fast.default
    def _fast_sampler(self) -> FastSampler | None:
        return fast_sampler(self.stages, self.sampler)

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Scores]:
        """
        Sample in each column.

        Args:
            logits: Raw logits, ``[batch, width, vocab]``; not modified.

            history: The tokens before each column.

        Returns:
            Ids ``[batch, width]``, -1 in a column whose scores are all ``-inf`` or NaN, and the
            processed scores.

        Raises:
            ValueError: A part returned a wrong shape.
        """
        found = None if self.fast is None else self.fast(logits, history)
        return self.run_stages(logits, history) if found is None else found

    def run_stages(self, logits: Tensor, history: History) -> tuple[Tensor, Scores]:
        """A call without the :attr:`fast` path."""
        seen = _within(history)
        needed, skipped = self._plan[: self._needed], self._plan[self._needed :]
        work, raw = Workspace(), _full_precision(logits.detach() if logits.requires_grad else logits)
        try:
            left = _run(needed, raw, seen, work)
            if skipped and not _has_clear_argmax(left):
                left, skipped = _run(skipped, left, seen, work), ()
            ids = self._select(left, history, work)
            if not isinstance(left, Candidates) and work.holds(left):
                # Tensors in the workspace must not leave the call.
                left, skipped = raw, self._plan
        finally:
            work.close()
        return ids, Scores(lambda: _dense(_run(skipped, left, seen)))

    def _select(self, left: Left, history: History, work: Workspace) -> Tensor:
        if isinstance(left, Candidates) and self._among is not None:
            ids, best = self._among(left, history), left.logits.numpy(force=True).max(axis=-1)
        else:
            left = _dense(left)
            # A custom sampler may keep a reference to its input.
            ids = self._call_sampler(
                left.clone() if self._among is None and work.holds(left) else left, history
            )
            _check_shape("sampler", self.sampler, ids, left.shape[:2])
            best = _at(left, ids)
        # Comparisons with NaN are false, so NaN never yields a token.
        return ids if (best > -np.inf).all() else ids.masked_fill(torch.from_numpy(~(best > -np.inf)), -1)

    def _call_sampler(self, logits: Tensor, history: History) -> Tensor:
        if offers_short_cuts(self.sampler):
            return self.sampler(logits, history)
        seed = self.sampler.seed if isinstance(self.sampler, Seeded) else 0
        before = noise.FOLDED_SEED.set(seed)
        try:
            return self.sampler(logits, history)
        finally:
            noise.FOLDED_SEED.reset(before)

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
        return _dense(_run(self._plan[:stages], _full_precision(logits), _within(history)))

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
                return Finish(NO_TOKEN_LEFT, f"{stage!r}{why}")
        return Finish(NO_TOKEN_LEFT, repr(self.sampler))


def _run(stages: Iterable[_Stage], left: Left, history: History, work: Workspace | None = None) -> Left:
    """Run *stages*, on candidates once there are few, and in the workspace where possible."""
    for stage in stages:
        if isinstance(left, Candidates):
            if stage.local:
                left = _among(stage, left, history)
                continue
            left = left.dense()
        shape = left.shape
        left = _step(stage, left, history, work)
        if not isinstance(left, Candidates):
            _check_shape("processors", stage.processor, left, shape)
    return left


def _step(stage: _Stage, left: Tensor, history: History, work: Workspace | None) -> Left:
    """Run *stage* on the whole vocabulary."""
    if left.device.type != "cpu":
        return stage.processor(left, history)
    # A view of the workspace, as a custom part may return, must not be overwritten.
    if work is not None and stage.into is not None and (left is work.logits or not work.holds(left)):
        out = left if left is work.logits else work.room(left)
        stage.into(left, history, out)
        return out
    if stage.narrow is not None:
        return stage.narrow(left, history)
    kept = work is not None and work.holds(left) and stage.may_keep
    return stage.processor(left.clone() if kept else left, history)


def _among(stage: _Stage, left: Candidates, history: History) -> Candidates:
    if stage.among is not None:
        return stage.among(left, history)
    logits = stage.processor(left.logits, history)
    _check_shape("processors", stage.processor, logits, left.logits.shape)
    return attrs.evolve(left, logits=logits)


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


def _dense(left: Left) -> Tensor:
    return left.dense() if isinstance(left, Candidates) else left


def _has_clear_argmax(left: Left) -> bool:
    """Whether each column's largest logit exceeds the others by more than rounding errors."""
    logits = (left.logits if isinstance(left, Candidates) else left).numpy(force=True)
    best = logits.max(axis=-1, keepdims=True)
    if not np.isfinite(best).all():
        return False
    close = logits >= best - (abs(best) + 16) * 2.0**-18
    return bool((np.count_nonzero(close, axis=-1) == 1).all())


def _check_shape(name: str, part: object, result: object, shape: torch.Size) -> None:
    found = list(result.shape) if isinstance(result, Tensor) else result
    if found != list(shape):
        raise ValueError(
            f"'{name}' must give a tensor of the shape {list(shape)}: got {found!r} from {part!r}"
        )


def _has_possible_token(logits: Tensor) -> bool:
    return bool((logits > -torch.inf).any() and not logits.isnan().any())
