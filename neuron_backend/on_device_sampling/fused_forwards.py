"""Forwards of a decoder with fused on-device sampling."""

import abc
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...decoding.forward_checks import check_inputs
from ...decoding.history import History
from ...decoding.protocols import Processor, Sampler
from ...decoding.sampling.greedy import Greedy
from ...decoding.sampling_placement import Placement
from ...decoding.scores import Scores
from ..kv_cache.buffers import CacheBuffers
from ..kv_cache.spans import end_position, smallest_span
from ..step import DecoderStep, Step
from ..tensor_parallel.lost_ranks import in_lockstep
from ..threads import on_threads
from .chain_digest import same_chain
from .fusion import Fusion, places
from .pipeline_validation import validate_pipeline
from .queued_forwards import FusedProgram as FusedProgram, QueuedForwards


class FusedForwards(QueuedForwards):
    """The part of a :class:`~..static_decoder.StaticDecoder` that samples on the device."""

    tree_widths: tuple[int, ...]
    threads: int | None
    cache: CacheBuffers

    _requested: "tuple[Processor | None, Sampler] | None" = None
    """The chain and sampler passed to :meth:`fuse`."""

    _refusal: str = (
        "the decoder was compiled without sampling: pass processors and sampler to compile_decoder"
    )
    """Why a chain that could be fused is not."""

    _last_match: "tuple[Any, Any, bool] | None" = None
    """The last arguments of :meth:`can_sample` and whether they match the fusion."""

    @property
    @abc.abstractmethod
    def step(self) -> DecoderStep:
        """The step without sampling."""

    def fuse(self, processors: Processor | None, sampler: Sampler | None) -> None:
        """
        Fuse sampling into the forwards if all parts have a device variant; otherwise only record why not.

        The target makes the compiled programs.

        Args:
            processors: A chain, one processor, or None.

            sampler: None: greedy.

        Raises:
            TypeError: An argument is not a processor or sampler.
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
        """Run every program that samples once with each of *spans*, on padding."""
        if self.fusion is None:
            return
        step, counted = self.fusion.step, len(self.cache.tensors)
        for span in spans:
            for width, program in self.fused_programs.items():
                with on_threads(self.threads):
                    program(*step.padding(width, self.cache, span)[:-counted])

    def leave_unfused(self, reason: str) -> None:
        """Sample on the host, for *reason*, even if :meth:`fuse` succeeded."""
        self.fusion, self.fused_programs, self._refusal = None, {}, reason

    @abc.abstractmethod
    def _eager(self, step: Step, *inputs: Tensor) -> Any:
        """Run *step* eagerly over the cache."""

    @property
    def sampling_widths(self) -> tuple[int, ...]:
        """Widths of the forwards that sample, ascending; empty if none does."""
        return tuple(sorted(self.fused_programs))

    def can_sample(self, processors: Processor | None, sampler: Sampler, rows: int) -> bool:
        """
        Whether :meth:`forward_and_sample` samples as *processors* and *sampler* do.

        True if the decoder was compiled with the same objects, or with decodekit's own of equal parameters;
        the seed of the sampler may differ.

        Args:
            processors: A chain, one processor, or None.

            sampler: The sampler.

            rows: Rows of the run; if a parameter has one value per row, this must be the batch size.
        """
        if self.fusion is None or not self.fused_programs:
            return False
        # Cached, since drafts call this for every token.
        match = self._last_match
        if match is None or match[0] is not processors or match[1] is not sampler:
            match = processors, sampler, self.fusion.serves(processors, sampler)
            self._last_match = match
        return match[2] and self.fusion.takes(rows)

    def forward_and_sample(
        self, ids: Tensor, cache_pos: Tensor, history: History, span: int | None = None
    ) -> tuple[Tensor, Scores]:
        """
        Feed *ids* as in :meth:`~..static_decoder.StaticDecoder.forward`, and sample the next tokens.

        Args:
            ids: Tokens to feed, ``[batch, width]`` int64, *width* one of :attr:`sampling_widths`.

            cache_pos: As in :meth:`~..static_decoder.StaticDecoder.forward`.

            history: The tokens up to each column, its own included, on one path. Its random streams seed the
                noise.

            span: As in :meth:`~..static_decoder.StaticDecoder.forward`.

        Returns:
            Sampled ids, ``[batch, width]`` int64 on the host, -1 where all tokens are masked; and the raw
            logits ``[batch, width, vocab]``, copied to the host when they are read, which must be before the
            next forward.

        Raises:
            ValueError: No program samples at this width, or as in a forward. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        check_inputs(ids, cache_pos, self.shape)
        inputs = self._sampling_inputs(ids.shape[1], history)
        slots = self._slots[smallest_span(self.spans, end_position(ids, cache_pos), span)]
        with on_threads(self.threads), in_lockstep(self.ranks, ids, cache_pos, slots[-1:]):
            sampled, logits = self.fused_programs[ids.shape[1]](ids, cache_pos, *inputs, slots)
        return sampled.to("cpu", torch.int64), Scores(lambda: logits.to("cpu", torch.float32))

    def explain(self, processors: Processor | None = None, sampler: Sampler | None = None) -> Placement:
        """
        Explain which processor and sampler run where, and why.

        Args:
            processors: A chain, one processor, or None.

            sampler: None: greedy. If both are None: those passed when compiling.
        """
        if processors is None and sampler is None and self._requested is not None:
            processors, sampler = self._requested
        sampler = Greedy() if sampler is None else sampler
        if self.can_sample(processors, sampler, self.shape.batch_size):
            return Placement(places(processors, sampler, True, ""), self._notes())
        if self._requested is not None and not same_chain(self._requested, (processors, sampler)):
            note = "the decoder was compiled with {!r} and {!r}".format(*self._requested)
            why_not = "the decoder was compiled with another chain or sampler"
            return Placement(places(processors, sampler, False, why_not), (note,))
        why_not = self._refusal
        if self.fusion is not None:
            why_not = "the decoder's target compiled no program that samples"
        return Placement(places(processors, sampler, False, why_not))

    def _notes(self) -> tuple[str, ...]:
        wide = [width for width in self.shape.widths if width not in self.fused_programs]
        notes = ["if the scores are read, the logits are processed again on the host"]
        if wide:
            notes.append(
                f"after a forward of {' or '.join(map(str, wide))} columns, as of a prompt, the host samples"
            )
        if self.tree_widths:
            notes.append("in trees of draft tokens the host samples")
        return tuple(notes)

    def _sampling_inputs(self, width: int, history: History) -> tuple[Tensor, ...]:
        if self.fusion is None or width not in self.fused_programs:
            widths = self.sampling_widths
            raise ValueError(f"a forward that samples must have one of the widths {widths}: got {width}")
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
