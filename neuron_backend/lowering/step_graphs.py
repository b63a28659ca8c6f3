"""The graphs of a decoder's steps as Neuron's compilers are given them, and what is known against them."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor
from torch.fx import GraphModule

from ..kv_cache.buffers import CacheBuffers
from ..lint.graph_lint import lint_graph
from ..lint.rules import Finding
from ..step import Step, program_name
from .export import lower

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..static_decoder import StaticDecoder


@attrs.frozen
class ProgramShape:
    """One program of a device that compiles for fixed shapes."""

    step: Step = attrs.field(eq=False)
    width: int
    span: int

    @property
    def name(self) -> str:
        """Such as ``"width_5_span_128"``."""
        return f"{program_name(self.step, self.width)}_span_{self.span}"


def program_shapes(decoder: "StaticDecoder") -> list[ProgramShape]:
    """
    What a compiler of fixed shapes compiles for *decoder*: each width with each span that is worth it.

    A span shorter than the width would serve wide forwards of a few tokens alone; they take the
    shortest one that is not.
    """
    return [
        ProgramShape(step, width, span)
        for step, width in decoder.steps()
        for span in spans_of(width, decoder.spans)
    ]


def spans_of(width: int, spans: Sequence[int]) -> tuple[int, ...]:
    """
    Those of *spans* that programs of *width* columns are made for; the last always.

    >>> spans_of(256, (128, 256, 512))
    (256, 512)
    """
    return tuple(span for span in spans if span >= width or span == spans[-1])


def lower_step(step: Step, width: int, cache: CacheBuffers, span: int) -> GraphModule:
    """
    The graph of one program: constants folded, the cache written by one ``copy_`` a tensor at its end.

    Args:
        step: What to lower. It stays as it is.

        width: Columns.

        cache: Says batch and shapes; not read.

        span: How many leading positions are attended to.
    """
    inputs = step.padding(width, _of_shape(cache), span)
    with static_experts(step.model):
        return lower(step, inputs)


def lint_decoder(decoder: "StaticDecoder") -> dict[str, list[Finding]]:
    """As :meth:`~..compiled_decoder.CompiledDecoder.lint`."""
    return {
        shape.name: lint_graph(lower_step(shape.step, shape.width, decoder.cache, shape.span))
        for shape in program_shapes(decoder)
    }


def _of_shape(cache: CacheBuffers) -> CacheBuffers:
    # Wherever the cache lies, tracing begins on the host; memory that nobody writes costs nothing.
    def blank(buffer: Tensor) -> Tensor:
        return torch.empty(buffer.shape, dtype=buffer.dtype)

    return CacheBuffers(
        keys=[blank(buffer) for buffer in cache.keys],
        values=[blank(buffer) for buffer in cache.values],
        reserved=cache.reserved,
    )


@contextlib.contextmanager
def static_experts(model: "PreTrainedModel") -> Iterator[None]:
    """
    Let a mixture of experts gather the experts that each token takes, for as long as it is traced.

    Transformers' other ways sort the tokens by expert or loop over the experts that were hit,
    which are shapes that depend on data.
    """
    before = getattr(model.config, "_experts_implementation", None)
    if before is None or not hasattr(model, "set_experts_implementation"):
        yield
        return
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)
