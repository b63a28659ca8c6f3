"""The decoding loop: propose, score, sample, verify, stop."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cache.slots import Slots
from ..history import History
from ..optional_protocols import reads_target_tokens
from ..protocols import Draft, Finish, StopCondition, Verification
from ..results.events import MAX_LENGTH, StepOutput
from ..results.timers import Timers
from ..sampling.pipeline import SamplingPipeline
from ..scores import Scores
from ..trees import Branch, target_branch, tokens_ahead, tree_window
from .drafting import Drafting, no_draft
from .exact_match_verification import ExactMatch
from .plain_step import PlainStep, known_codes

if TYPE_CHECKING:
    from .logprob_recorder import LogprobRecorder

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@attrs.frozen(eq=False)
class Loop:
    """
    The decoding loop and everything that is constant during a run.

    Plain decoding is this loop with an empty draft.
    """

    slots: Slots
    pipeline: SamplingPipeline
    stop: StopCondition
    drafting: Drafting | None
    verification: Verification
    exact_width: bool
    timers: Timers
    gap: Callable[[Tensor, History], Tensor] | None = None
    """The sampler's ``gap``, if it is recorded: logits to the margin of each column's token."""
    recorder: "LogprobRecorder | None" = None
    """Records log-probabilities, if requested."""
    samples_on_device: bool = False
    """Whether the decoder's own forwards sample as :attr:`pipeline` does."""
    # Read once per run: conditions build theirs on every access.
    _finishes: tuple[Finish, ...] = attrs.field(init=False, repr=False)
    _reads_target_tokens: bool = attrs.field(init=False, repr=False)

    @_finishes.default
    def _finishes_of_the_stop(self) -> tuple[Finish, ...]:
        return self.stop.finishes

    @_reads_target_tokens.default
    def _resolve_reading(self) -> bool:
        return reads_target_tokens(self.verification)

    def run(self, history: History) -> Iterator[list[StepOutput]]:
        """
        Decode until all rows have ended, one step at a time.

        Args:
            history: The prompts, width 1. The loop writes to its ids, which have room for one token
                more than the decoder has positions, since the last one need not be fed.
        """
        return self._plainly(history) if self._is_plain() else self._with_drafts(history)

    def _is_plain(self) -> bool:
        """Whether plain steps suffice: no draft, no records, no device sampling."""
        recorded = self.gap is not None or self.recorder is not None
        return (
            self.drafting is None
            and type(self.verification) is ExactMatch
            and self.slots.supports_decode_step
            and not (recorded or self.exact_width or self.samples_on_device)
        )

    def _plainly(self, history: History) -> Iterator[list[StepOutput]]:
        """:meth:`run` with plain steps."""
        length, rows = history.length[:, 0].numpy(), list(range(len(history.length)))
        without_gradients = torch.no_grad()
        step = PlainStep(self.slots, self.pipeline, self.stop, self._finishes, self.timers, history)
        while rows:
            # Not acquire() and release(): an interrupt may occur between acquire() and try.
            with self.slots.lock, without_gradients:
                if step.follows():
                    outputs, length = step(length, rows)
                else:
                    outputs, length = self._first(history, length, rows)
                step.note()
            ended = [output.row for output in outputs if output.finish is not None]
            if ended:
                rows = [row for row in rows if row not in ended]
            yield outputs

    def _first(self, history: History, length: Ints, rows: list[int]) -> tuple[list[StepOutput], Ints]:
        """A general step, which may feed anything; result as of :class:`~.plain_step.PlainStep`."""
        now, active = history.at(torch.from_numpy(length[:, None])), np.zeros(len(length), dtype=np.bool_)
        active[rows] = True
        outputs, added, _ = self._step(now, no_draft(len(length)), active)
        return outputs, length + added

    def _with_drafts(self, history: History) -> Iterator[list[StepOutput]]:
        """:meth:`run` with general steps."""
        # Small arrays: numpy takes a fraction of torch's time.
        length, active = history.length[:, 0].numpy(), np.ones(len(history.length), dtype=np.bool_)
        empty_draft = no_draft(len(active))
        while active.any():
            now = history.at(torch.from_numpy(length[:, None]))
            clock = self.timers.step_clock()
            drafting, draft, allowed = self.drafting, empty_draft, 0
            if drafting is not None:
                # The first token does not wait for the drafter's prefill.
                begun = torch.from_numpy(active & (length > now.prompt.numpy()))
                drafting = drafting if begun.any() else None
            if drafting is not None and (allowed := drafting.allowed(int(begun.sum()))):
                with self.timers.phase("draft"):
                    draft = drafting.propose(now, begun, allowed)
            # The logits of a step are valid until the next forward by any user.
            waiting_since = time.perf_counter()
            # Not acquire() and release(): an interrupt may occur between acquire() and try.
            with self.slots.lock:
                clock.leave_out(time.perf_counter() - waiting_since)
                outputs, added, accepted = self._step(now, draft, active)
            seconds = clock.read()
            # Not in place: a part may keep a reference.
            length = length + added
            for output in outputs:
                active[output.row] = output.finish is None
            yield outputs
            # After the outputs were delivered, so that an exception here loses nothing.
            if drafting is not None:
                drafting.learn(allowed, draft, accepted, begun, **seconds)

    @torch.no_grad()
    def _step(self, now: History, draft: Draft, active: Flags) -> tuple[list[StepOutput], Ints, Tensor]:
        """Verify *draft*: the outputs, the tokens added to each row, and the accepted draft tokens."""
        seen = _chain_window(now, draft) if draft.parents is None else tree_window(now, draft)
        sampled, raw = self._score(now, draft, active)
        self.slots.logits_in_use = True
        try:
            return self._verify(sampled, raw, seen, now, draft, active)
        finally:
            self.slots.logits_in_use = False

    def _verify(
        self, sampled: Tensor | None, raw: Scores, seen: History, now: History, draft: Draft, active: Flags
    ) -> tuple[list[StepOutput], Ints, Tensor]:
        """
        Sample from the *raw* logits after the columns *seen*, verify and stop; result as of :meth:`_step`.

        Tokens *sampled* on the device are not sampled again.
        """
        with self.timers.phase("sample"):
            target_tokens, scores = (
                self.pipeline(raw.logits, seen)
                if sampled is None
                else (sampled, self.pipeline.scores(raw, seen))
            )
            branch, window = Branch(draft), seen
            if draft.parents is not None:
                branch = target_branch(draft, target_tokens)
                target_tokens, scores = branch.gather(target_tokens), branch.scores(scores)
                window = _chain_window(now, branch.draft)
            num_accepted, next_ids = self.verification(branch.draft, target_tokens, scores, window)
            accepted, following = num_accepted.numpy(), np.where(active, next_ids.numpy(), -1)
            added = np.where(active, accepted + (following >= 0), 0)
        length = now.length.numpy()[:, 0]
        _write(now.ids.numpy(), length + accepted, following[:, None])

        with self.timers.phase("stop"):
            added, codes = self._until_stop(now, added, scores, target_tokens.shape[1])
        if self.gap is not None:
            with self.timers.phase("gap"):
                gap = self.gap(scores.logits, window).numpy()
                kept = np.arange(gap.shape[1]) < added[:, None]
                self.timers.statistics.record_gaps(gap[kept].tolist())
        new = _tokens(now.ids.numpy(), length, added)
        logprobs = None
        if self.recorder is not None:
            with self.timers.phase("logprobs"):
                logprobs = self.recorder.of_new_tokens(raw.logits, seen, branch, scores, new)

        outputs, last = [], now.ids.shape[-1]
        counts = self._row_counts(now, draft, accepted)
        for row in active.nonzero()[0].tolist():
            count, code = len(new[row]), codes[row]
            if code:
                finish: Finish | None = self._finishes[code - 1]
            elif following[row] < 0:
                column = branch.column(row, count)
                finish = self.pipeline.finish_without_token(raw.logits, seen, row, column)
            else:
                finish = MAX_LENGTH if length[row] + count == last else None
            outputs.append(StepOutput(row, new[row], finish, None if logprobs is None else logprobs[row]))
            self._count(row, count, *counts[row], stopped=code > 0)
        return outputs, added, num_accepted

    def _until_stop(self, now: History, added: Ints, scores: Scores, width: int) -> tuple[Ints, list[int]]:
        """
        Cut each row's new tokens at its first stop.

        Returns:
            The remaining number of tokens, ``[batch]``, and each row's stop code, 0 for none.
        """
        columns, gained = np.arange(width), added[:, None]
        after = now.at(torch.from_numpy(now.length.numpy() + np.minimum(columns + 1, gained)))
        codes = known_codes(self.stop(scores, after), after, len(self._finishes))
        if not codes.any():
            return added, [0] * len(added)
        codes = np.where(columns < gained, codes, 0)
        first = (codes > 0).argmax(axis=1)
        code = codes[np.arange(len(codes)), first]
        return np.where(code > 0, first + 1, added), code.tolist()

    def _score(self, now: History, draft: Draft, active: Flags) -> tuple[Tensor | None, Scores]:
        """
        Feed the active rows their tokens and draft tokens.

        Returns:
            Ids ``[batch, k + 1]`` if sampled on the device, and logits ``[batch, k + 1, vocab]``.
        """
        ids, length = now.ids[:, 0], now.length[:, 0]
        phase = "target" if (length.numpy() > now.prompt.numpy()).any() else "prefill"
        slots = self.slots
        forwards, columns, tokens = slots.forwards, slots.columns, slots.tokens
        with self.timers.phase(phase):
            if draft.parents is None:
                drafted = (draft.ids.numpy() >= 0).sum(axis=1)
                need = torch.from_numpy(np.where(active, drafted + 1, 0))
                if draft.ids.shape[1]:
                    length = length + torch.from_numpy(drafted)
                if self._decoder_samples(draft):
                    scored = slots.feed_and_sample(now, length, need, self.exact_width)
                else:
                    logits = slots.feed(ids, length, need, self.exact_width)
                    scored = None, Scores(lambda: logits)
            else:
                logits = slots.feed_tree(ids, length, draft.ids, draft.parents, torch.from_numpy(active))
                scored = None, Scores(lambda: logits)
        self.timers.statistics.forwards += slots.forwards - forwards
        if phase == "target":
            columns, tokens = slots.columns - columns, slots.tokens - tokens
            self.timers.statistics.columns += columns
            self.timers.statistics.padding += columns - tokens
        return scored

    def _decoder_samples(self, draft: Draft) -> bool:
        """Whether to sample on the device; not if the verification reads scores only."""
        return self.samples_on_device and (self._reads_target_tokens or not draft.ids.shape[1])

    def _row_counts(self, now: History, draft: Draft, accepted: Ints) -> list[tuple[bool, int, int]]:
        """For each row: whether this is its first token, its draft length, and its accepted draft tokens."""
        first = now.length.numpy()[:, 0] <= now.prompt.numpy()
        ahead = tokens_ahead(draft).tolist() if draft.ids.shape[1] else [0] * len(accepted)
        return list(zip(first.tolist(), ahead, accepted.tolist(), strict=True))

    def _count(
        self, row: int, added: int, first: bool, drafted: int, accepted: int, *, stopped: bool
    ) -> None:
        """Count one row's new tokens; its first token is no verification."""
        if first:
            self.timers.statistics.record_first(added)
            return
        # Draft tokens after a stop within the accepted ones are not counted.
        counted = added if stopped and added <= accepted else drafted
        self.timers.statistics.record(added, counted, min(accepted, counted), row)


def _chain_window(now: History, draft: Draft) -> History:
    """
    The tokens before each column: column *i* has the first *i* tokens of *draft* before it.

    The draft tokens are written after the tokens so far.
    """
    if not draft.ids.shape[1]:
        return now
    _write(now.ids.numpy(), now.length.numpy()[:, 0], draft.ids.numpy())
    drafted = (draft.ids >= 0).sum(dim=-1, keepdim=True)
    return now.at(now.length + torch.arange(draft.ids.shape[1] + 1).minimum(drafted))


def _tokens(ids: Ints, start: Ints, count: Ints) -> list[tuple[int, ...]]:
    """*count* ids of each row, from its *start* on."""
    spans = zip(start.tolist(), (start + count).tolist(), strict=True)
    return [tuple(ids[row, 0, first:end].tolist()) for row, (first, end) in enumerate(spans)]


def _write(ids: Ints, start: Ints, new: Ints) -> None:
    """Write each row's *new* ids ``[batch, n]`` from position *start* on, -1 left out."""
    rows, columns = (new >= 0).nonzero()
    ids[rows, 0, start[rows] + columns] = new[rows, columns]
