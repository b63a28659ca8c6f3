"""Graphs of a decoder's steps as Neuron's compilers get them, one per width and span."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import torch
from torch.fx import GraphModule

from ..kv_cache.buffers import CacheBuffers
from ..kv_cache.writes import write_by_scatter
from ..row_steps import RowStep
from ..step import CacheProgram, DecoderStep, Step, program_name
from .export import lower

if TYPE_CHECKING:
    from ..static_decoder import StaticDecoder


WIDEST_STEP = 32
"""Forwards of more columns than this and than ``scored_width`` take in prompts, and run once for each."""


@attrs.frozen
class ProgramShape:
    """Step, width and span of one program of fixed shapes."""

    step: CacheProgram = attrs.field(eq=False)
    width: int
    span: int

    @property
    def name(self) -> str:
        """Name of the program, such as ``"width_5_span_128"``."""
        return f"{program_name(self.step, self.width)}_span_{self.span}"


def program_shapes(decoder: "StaticDecoder", prompt_spans: bool = False) -> list[ProgramShape]:
    """
    The programs that a compiler of fixed shapes makes for *decoder*: each width with each useful span.

    A width for prompts has two programs: over the shortest span, for prompts from their first token on, and
    over the whole cache, for later parts of prompts. Spans in between would take minutes each to compile on
    Neuron, and only help those parts. The whole cache alone would slow down every prompt: on a CPU, 128
    columns took 2 times as long over 2048 positions as over 128, and 6 times as long over 8192.

    Those of single rows follow, if the decoder has any (:meth:`~..row_forwards.RowForwards.row_steps`).

    Args:
        decoder: The decoder.

        prompt_spans: Whether widths for prompts have every span as well, which pays where a program takes
            seconds to make.
    """
    return [
        ProgramShape(step, width, span)
        for step, width in (*decoder.steps(), *decoder.row_steps())
        for span in program_spans(decoder, step, width, prompt_spans)
    ]


def program_spans(
    decoder: "StaticDecoder", step: CacheProgram, width: int, prompt_spans: bool = False
) -> tuple[int, ...]:
    """The spans of the programs of *step* at one width, ascending; see :func:`program_shapes`."""
    spans = spans_of(width, decoder.spans)
    takes_prompts = step.kind in (DecoderStep.kind, RowStep.kind) and width > max(
        decoder.shape.scored_width, WIDEST_STEP
    )
    return tuple(dict.fromkeys((spans[0], spans[-1]))) if takes_prompts and not prompt_spans else spans


def spans_of(width: int, spans: Sequence[int]) -> tuple[int, ...]:
    """
    The *spans* that can serve forwards of *width* columns; always including the last.

    A span shorter than the width would only serve wide forwards that are mostly padding; they use the
    shortest span that is not.

    >>> spans_of(256, (128, 256, 512))
    (256, 512)
    """
    return tuple(span for span in spans if span >= width or span == spans[-1])


def lower_step(step: CacheProgram, width: int, cache: CacheBuffers, span: int) -> GraphModule:
    """
    The graph of one program: constants folded, one ``copy_`` into each cache tensor at its end.

    Args:
        step: The step to lower; it is not modified.

        width: Columns.

        cache: Gives batch size and shapes; its contents are not read.

        span: Number of leading positions that are attended to.
    """
    inputs = step.padding(width, _of_shape(cache), span)
    with static_experts(step):
        return lower(step.writing_with(write_by_scatter) if isinstance(step, Step) else step, inputs)


def _of_shape(cache: CacheBuffers) -> CacheBuffers:
    # On the host, where tracing starts, whatever the cache's device; uninitialised memory costs nothing.
    return cache.map(lambda buffer: torch.empty(buffer.shape, dtype=buffer.dtype))


@contextlib.contextmanager
def static_experts(step: CacheProgram) -> Iterator[None]:
    """
    Use the batched implementation of a mixture of experts while *step* is traced.

    It gathers the weights of each token's experts. Transformers' other implementations sort tokens by expert
    or loop over active experts, which has data-dependent shapes.
    """
    model = step.model if isinstance(step, Step) else None
    before = None if model is None else getattr(model.config, "_experts_implementation", None)
    if model is None or before is None or not hasattr(model, "set_experts_implementation"):
        yield
        return
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)
