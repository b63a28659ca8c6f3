"""The loop: propose, score, choose, keep, stop."""

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
from .drafting import Drafting, nothing
from .exact_match import ExactMatch
from .plain_step import PlainStep, known_codes

if TYPE_CHECKING:
    from .logprob_recorder import LogprobRecorder

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@attrs.frozen(eq=False)
class Loop:
    """
    Everything that stays the same while rows are decoded.

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
    """The sampler's own, if it is to be recorded: logits to how far each column's choice is ahead."""
    recorder: "LogprobRecorder | None" = None
    """Of log-probabilities, if they were asked for."""
    samples_on_device: bool = False
    """Whether the decoder's own forwards choose as :attr:`pipeline` does."""
    # Once a run: conditions make theirs anew whenever they are asked.
    _endings: tuple[Finish, ...] = attrs.field(init=False, repr=False)
    _reads_choices: bool = attrs.field(init=False, repr=False)

    @_endings.default
    def _endings_of_the_stop(self) -> tuple[Finish, ...]:
        return self.stop.finishes

    @_reads_choices.default
    def _look_for_reading(self) -> bool:
        return reads_target_tokens(self.verification)

    def run(self, history: History) -> Iterator[list[StepOutput]]:
        """
        Decode until every row has ended, a round at a time.

        Args:
            history: The prompts, width 1. Its ids are the loop's own to write to; there is
                room for one token more than the decoder has positions, since the last one
                need not be fed.
        """
        return self._plainly(history) if self._is_plain() else self._with_drafts(history)

    def _is_plain(self) -> bool:
        """Whether a round is a token a row, and nobody wants to know more of it."""
        asked = self.gap is not None or self.recorder is not None
        return (
            self.drafting is None
            and type(self.verification) is ExactMatch
            and self.slots.supports_decode_step
            and not (asked or self.exact_width or self.samples_on_device)
        )

    def _plainly(self, history: History) -> Iterator[list[StepOutput]]:
        """As :meth:`run`, where a round is a token a row."""
        length, rows = history.length[:, 0].numpy(), list(range(len(history.length)))
        without_gradients = torch.no_grad()
        step = PlainStep(self.slots, self.pipeline, self.stop, self._endings, self.timers, history)
        while rows:
            # Not by acquire() and release(): an interrupt may come between that and a try.
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
        """A round in which there may be anything to feed; as :class:`~.plain_step.PlainStep`."""
        now, active = history.at(torch.from_numpy(length[:, None])), np.zeros(len(length), dtype=np.bool_)
        active[rows] = True
        outputs, added, _ = self._round(now, nothing(len(length)), active)
        return outputs, length + added

    def _with_drafts(self, history: History) -> Iterator[list[StepOutput]]:
        """As :meth:`run`, round by round."""
        # A few numbers for each row: numpy takes a fraction of torch's time for them.
        length, active = history.length[:, 0].numpy(), np.ones(len(history.length), dtype=np.bool_)
        unguessed = nothing(len(active))
        while active.any():
            now = history.at(torch.from_numpy(length[:, None]))
            clock = self.timers.round()
            drafting, draft, allowed = self.drafting, unguessed, 0
            if drafting is not None:
                # A first token is not kept waiting for the drafter's own prompt.
                begun = torch.from_numpy(active & (length > now.prompt.numpy()))
                drafting = drafting if begun.any() else None
            if drafting is not None and (allowed := drafting.allowed(int(begun.sum()))):
                with self.timers.phase("draft"):
                    draft = drafting.guess(now, begun, allowed)
            # The logits of a round live until the next forward, whoever makes it.
            asked = time.perf_counter()
            # Not by acquire() and release(): an interrupt may come between that and a try.
            with self.slots.lock:
                clock.leave_out(time.perf_counter() - asked)
                outputs, added, accepted = self._round(now, draft, active)
            seconds = clock.read()
            # Not in place: a part may keep what it was shown.
            length = length + added
            for output in outputs:
                active[output.row] = output.finish is None
            yield outputs
            # Now that nothing can be lost by it.
            if drafting is not None:
                drafting.learn(allowed, draft, accepted, begun, **seconds)

    @torch.no_grad()
    def _round(self, now: History, draft: Draft, active: Flags) -> tuple[list[StepOutput], Ints, Tensor]:
        """Let the target look at *draft*: bursts, tokens that each row gained, and guesses that stood."""
        seen = _chain_window(now, draft) if draft.parents is None else tree_window(now, draft)
        chosen, raw = self._score(now, draft, active)
        self.slots.logits_in_use = True
        try:
            return self._judge(chosen, raw, seen, now, draft, active)
        finally:
            self.slots.logits_in_use = False

    def _judge(
        self, chosen: Tensor | None, raw: Scores, seen: History, now: History, draft: Draft, active: Flags
    ) -> tuple[list[StepOutput], Ints, Tensor]:
        """
        Choose from *raw* logits, which follow the columns *seen*, and stop: as :meth:`_round`.

        What is *chosen* already is not chosen again.
        """
        with self.timers.phase("pipeline"):
            choices, scores = (
                self.pipeline(raw.logits, seen)
                if chosen is None
                else (chosen, self.pipeline.scores(raw, seen))
            )
            branch, window = Branch(draft), seen
            if draft.parents is not None:
                branch = target_branch(draft, choices)
                choices, scores = branch.gather(choices), branch.scores(scores)
                window = _chain_window(now, branch.draft)
            stood, next_ids = self.verification(branch.draft, choices, scores, window)
            accepted, following = stood.numpy(), np.where(active, next_ids.numpy(), -1)
            added = np.where(active, accepted + (following >= 0), 0)
        length = now.length.numpy()[:, 0]
        _write(now.ids.numpy(), length + accepted, following[:, None])

        with self.timers.phase("stop"):
            added, codes = self._until_stop(now, added, scores, choices.shape[1])
        if self.gap is not None:
            with self.timers.phase("gap"):
                gap = self.gap(scores.logits, window).numpy()
                kept = np.arange(gap.shape[1]) < added[:, None]
                self.timers.statistics.record_gaps(gap[kept].tolist())
        new = _tokens(now.ids.numpy(), length, added)
        logprobs = None
        if self.recorder is not None:
            with self.timers.phase("logprobs"):
                logprobs = self.recorder.chosen(raw.logits, seen, branch, scores, new)

        outputs, last = [], now.ids.shape[-1]
        rounds = self._rounds(now, draft, accepted)
        for row in active.nonzero()[0].tolist():
            count, code = len(new[row]), codes[row]
            if code:
                finish: Finish | None = self._endings[code - 1]
            elif following[row] < 0:
                column = branch.column(row, count)
                finish = Finish("no_token_left", self.pipeline.emptied_by(raw.logits, seen, row, column))
            else:
                finish = MAX_LENGTH if length[row] + count == last else None
            outputs.append(StepOutput(row, new[row], finish, None if logprobs is None else logprobs[row]))
            self._count(row, count, *rounds[row], stopped=code > 0)
        return outputs, added, stood

    def _until_stop(self, now: History, added: Ints, scores: Scores, width: int) -> tuple[Ints, list[int]]:
        """
        Cut what each row gained at its first stop.

        Returns:
            How many tokens are left of it, ``[batch]``, and each row's code of the stop, 0 for none.
        """
        columns, gained = np.arange(width), added[:, None]
        after = now.at(torch.from_numpy(now.length.numpy() + np.minimum(columns + 1, gained)))
        codes = known_codes(self.stop(scores, after), after, len(self._endings))
        if not codes.any():
            return added, [0] * len(added)
        codes = np.where(columns < gained, codes, 0)
        first = (codes > 0).argmax(axis=1)
        code = codes[np.arange(len(codes)), first]
        return np.where(code > 0, first + 1, added), code.tolist()

    def _score(self, now: History, draft: Draft, active: Flags) -> tuple[Tensor | None, Scores]:
        """
        Feed the active rows their tokens and guesses.

        Returns:
            Choices ``[batch, k + 1]`` if the decoder has made them, and logits ``[batch, k + 1, vocab]``.
        """
        ids, length = now.ids[:, 0], now.length[:, 0]
        phase = "target" if (length.numpy() > now.prompt.numpy()).any() else "prefill"
        slots = self.slots
        forwards, columns, tokens = slots.forwards, slots.columns, slots.tokens
        with self.timers.phase(phase):
            if draft.parents is None:
                guessed = (draft.ids.numpy() >= 0).sum(axis=1)
                need = torch.from_numpy(np.where(active, guessed + 1, 0))
                if draft.ids.shape[1]:
                    length = length + torch.from_numpy(guessed)
                if self._lets_choose(draft):
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

    def _lets_choose(self, draft: Draft) -> bool:
        """Whether the decoder is to choose; not if a verification looks at scores alone."""
        return self.samples_on_device and (self._reads_choices or not draft.ids.shape[1])

    def _rounds(self, now: History, draft: Draft, accepted: Ints) -> list[tuple[bool, int, int]]:
        """Of each row: whether this is its first token, how far it was guessed, and how much stood."""
        first = now.length.numpy()[:, 0] <= now.prompt.numpy()
        ahead = tokens_ahead(draft).tolist() if draft.ids.shape[1] else [0] * len(accepted)
        return list(zip(first.tolist(), ahead, accepted.tolist(), strict=True))

    def _count(
        self, row: int, added: int, first: bool, guessed: int, accepted: int, *, stopped: bool
    ) -> None:
        """Count what one row gained; its first token is no verification."""
        if first:
            self.timers.statistics.record_first(added)
            return
        # Guesses behind a stop among those that stood are none.
        counted = added if stopped and added <= accepted else guessed
        self.timers.statistics.record(added, counted, min(accepted, counted), row)


def _chain_window(now: History, draft: Draft) -> History:
    """
    The tokens before each column: column *i* has the first *i* guesses of *draft* before it.

    The guesses are written behind the tokens so far.
    """
    if not draft.ids.shape[1]:
        return now
    _write(now.ids.numpy(), now.length.numpy()[:, 0], draft.ids.numpy())
    guessed = (draft.ids >= 0).sum(dim=-1, keepdim=True)
    return now.at(now.length + torch.arange(draft.ids.shape[1] + 1).minimum(guessed))


def _tokens(ids: Ints, start: Ints, count: Ints) -> list[tuple[int, ...]]:
    """*count* ids of each row, from its *start* on."""
    spans = zip(start.tolist(), (start + count).tolist(), strict=True)
    return [tuple(ids[row, 0, first:end].tolist()) for row, (first, end) in enumerate(spans)]


def _write(ids: Ints, start: Ints, new: Ints) -> None:
    """Write each row's *new* ids ``[batch, n]`` from position *start* on, -1 left out."""
    rows, columns = (new >= 0).nonzero()
    ids[rows, 0, start[rows] + columns] = new[rows, columns]
