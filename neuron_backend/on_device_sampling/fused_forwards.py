"""What a decoder does beside scoring if a choice is part of its forwards."""

import abc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...decoding.checks import check_inputs
from ...decoding.history import History
from ...decoding.placement import Placement
from ...decoding.protocols import DecoderShape, Processor, Sampler
from ...decoding.sampling.greedy import Greedy
from ...decoding.scores import Scores
from ..artifacts.chain_digest import same_chain
from ..kv_cache.buffers import CacheBuffers
from ..kv_cache.spans import end_position, smallest_span
from ..step import DecoderStep, Step
from ..tensor_parallel.ranks import Ranks, in_lockstep
from ..threads import on_threads
from .fusion import Fusion, part_placements
from .pipeline_validation import validate_pipeline

FusedProgram = Callable[..., tuple[Tensor, Tensor]]
"""What :class:`~.fused_step.FusedStep` takes before the cache, to choice and logits."""


class FusedForwards(abc.ABC):
    """The part of a :class:`~..static_decoder.StaticDecoder` that chooses."""

    shape: DecoderShape
    spans: tuple[int, ...]
    tree_widths: tuple[int, ...]
    threads: int | None
    cache: CacheBuffers
    ranks: Ranks | None
    _slots: dict[int, Tensor]

    fusion: Fusion | None = None
    """The chain and the sampler behind the step; None if there are none."""

    fused_programs: Mapping[int, FusedProgram] = {}
    """What runs at each width that chooses; empty if nothing does."""

    _requested: "tuple[Processor | None, Sampler] | None" = None
    """What was to be part of the forwards."""

    _refusal: str = (
        "the decoder was compiled without a choice: pass processors and sampler to compile_decoder"
    )
    """Why a chain that could be is not."""

    _last_match: "tuple[Any, Any, bool] | None" = None
    """The last question of :meth:`can_sample`, and what was said."""

    @property
    @abc.abstractmethod
    def step(self) -> DecoderStep:
        """The forward."""

    def fuse(self, processors: Processor | None, sampler: Sampler | None) -> None:
        """
        Put a choice behind the step, if all of it has a form for the device; nothing changes if not.

        The programs are the target's to make.

        Args:
            processors: A chain, one processor, or None.

            sampler: None: greedy.

        Raises:
            TypeError: They are none.
        """
        validate_pipeline(processors, sampler)
        sampler = Greedy() if sampler is None else sampler
        self._requested, self._last_match = (processors, sampler), None
        try:
            self.fusion = Fusion.of(self.step, self.shape, processors, sampler)
        except ValueError as error:
            self.leave_unfused(str(error))
        else:
            self.fused_programs = dict.fromkeys(self.fusion.widths, partial(self._eager, self.fusion.step))

    def warm_up_sampling(self, spans: Sequence[int]) -> None:
        """Run every program that chooses once with each of *spans*, on padding."""
        if self.fusion is None:
            return
        step, counted = self.fusion.step, len(self.cache.tensors)
        for span in spans:
            for width, program in self.fused_programs.items():
                with on_threads(self.threads):
                    program(*step.padding(width, self.cache, span)[:-counted])

    def leave_unfused(self, reason: str) -> None:
        """Choose on the host, whatever was asked for, for that *reason*."""
        self.fusion, self.fused_programs, self._refusal = None, {}, reason

    @abc.abstractmethod
    def _eager(self, step: Step, *inputs: Tensor) -> Any:
        """What *step* gives over the cache, without any compiler."""

    @property
    def sampling_widths(self) -> tuple[int, ...]:
        """Columns of the forwards that choose, ascending; empty if none does."""
        return tuple(sorted(self.fused_programs))

    def can_sample(self, processors: Processor | None, sampler: Sampler, rows: int) -> bool:
        """
        Whether :meth:`forward_and_sample` chooses as these do.

        So it is if the decoder was compiled with the very ones, or with decodekit's own of equal
        parameters; the seed of the sampler may be another.

        Args:
            processors: A chain, one processor, or None.

            sampler: What chooses.

            rows: How many rows a run has. Where parameters are one a row, all that there are.
        """
        if self.fusion is None or not self.fused_programs:
            return False
        # A draft asks at every token.
        answer = self._last_match
        if answer is None or answer[0] is not processors or answer[1] is not sampler:
            answer = processors, sampler, self.fusion.serves(processors, sampler)
            self._last_match = answer
        return answer[2] and self.fusion.takes(rows)

    def forward_and_sample(
        self, ids: Tensor, cache_pos: Tensor, history: History, span: int | None = None
    ) -> tuple[Tensor, Scores]:
        """
        Write *ids* into the cache, score what may follow them, and choose from that.

        Args:
            ids: Tokens to feed, ``[batch, width]`` int64, *width* one of :attr:`sampling_widths`.

            cache_pos: As in :meth:`~..static_decoder.StaticDecoder.forward`.

            history: The tokens before what each column may be followed by, its own among them, on
                one path. Its random streams make the noise.

            span: As in :meth:`~..static_decoder.StaticDecoder.forward`.

        Returns:
            The choice in each column, ``[batch, width]`` int64 on the host, -1 where no token is
            left; and the raw logits ``[batch, width, vocab]``, brought to the host when somebody
            reads them, before the next forward.

        Raises:
            ValueError: Nothing chooses at this width, or as in a forward. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        check_inputs(ids, cache_pos, self.shape)
        given = self._sampling_inputs(ids.shape[1], history)
        slots = self._slots[smallest_span(self.spans, end_position(ids, cache_pos), span)]
        with on_threads(self.threads), in_lockstep(self.ranks, ids, cache_pos, slots[-1:]):
            chosen, logits = self.fused_programs[ids.shape[1]](ids, cache_pos, *given, slots)
        return chosen.to("cpu", torch.int64), Scores(lambda: logits.to("cpu", torch.float32))

    def explain(self, processors: Processor | None = None, sampler: Sampler | None = None) -> Placement:
        """
        Say which part of a choice runs where, and why.

        Args:
            processors: A chain, one processor, or None.

            sampler: What chooses; greedy if not given. If neither is, those that the decoder was to be
                compiled with.
        """
        if processors is None and sampler is None and self._requested is not None:
            processors, sampler = self._requested
        sampler = Greedy() if sampler is None else sampler
        if self.can_sample(processors, sampler, self.shape.batch_size):
            return Placement(part_placements(processors, sampler, True, ""), self._notes())
        if self._requested is not None and not same_chain(self._requested, (processors, sampler)):
            note = "the decoder was compiled with {!r} and {!r}".format(*self._requested)
            why_not = "the decoder was compiled with another chain or sampler"
            return Placement(part_placements(processors, sampler, False, why_not), (note,))
        why_not = self._refusal
        if self.fusion is not None:
            why_not = "the decoder's target compiled no program that chooses"
        return Placement(part_placements(processors, sampler, False, why_not))

    def _notes(self) -> tuple[str, ...]:
        wide = [width for width in self.shape.widths if width not in self.fused_programs]
        notes = ["the logits are processed again, on the host, where somebody reads the scores"]
        if wide:
            notes.append(
                f"after a forward of {' or '.join(map(str, wide))} columns, as of a prompt, the host chooses"
            )
        if self.tree_widths:
            notes.append("in trees of guesses the host chooses")
        return tuple(notes)

    def _sampling_inputs(self, width: int, history: History) -> tuple[Tensor, ...]:
        if self.fusion is None or width not in self.fused_programs:
            widths = self.sampling_widths
            raise ValueError(f"a forward that chooses must have one of the widths {widths}: got {width}")
        batch_size, length = self.shape.batch_size, history.length
        if length.shape != (batch_size, width) or history.ids.shape[:2] != (batch_size, 1):
            raise ValueError(
                f"'history' must have one path and the lengths {[batch_size, width]}: "
                f"got {history.ids.shape[1]} and {list(length.shape)}"
            )
        low, high, most = int(length.min()), int(length.max()), self.shape.max_length
        if low < 0 or high > most:
            raise ValueError(f"'history' must have lengths >= 0 and <= {most}: got {low} to {high}")
        return self.fusion.step.sampling_inputs(history)
