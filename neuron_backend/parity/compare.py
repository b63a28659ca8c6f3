"""Comparison of a decoder with the stock model: runs all probes."""

from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ..step import DecoderStep
from .copy_probe import CopyingDecoder, check_copies
from .logits_probe import TOLERANCE, Probe
from .sampling_probe import SamplingDecoder, check_sampling
from .tree_probe import TreeDecoder, check_trees


class ComparedDecoder(TreeDecoder, SamplingDecoder, CopyingDecoder, Protocol):
    """A decoder whose stock model is available."""

    spans: tuple[int, ...]

    @property
    def step(self) -> DecoderStep:
        """The stock model's forward over the cache."""
        ...

    row_widths: tuple[int, ...]

    def forward_row(self, ids: Tensor, cache_pos: Tensor, row: int, span: int | None = None) -> Tensor:
        """As :meth:`~...decoding.optional_protocols.FeedsRows.forward_row`, likewise."""
        ...

    def forward(self, ids: Tensor, cache_pos: Tensor, span: int | None = None) -> Tensor:
        """As :meth:`~...decoding.protocols.Decoder.forward`, over one of :attr:`spans`."""
        ...


def _row_by_row(decoder: ComparedDecoder, ids: Tensor, cache_pos: Tensor, span: int | None = None) -> Tensor:
    """A forward of all rows, each by itself where there is a program for it."""
    if ids.shape[1] not in decoder.row_widths:
        return decoder.forward(ids, cache_pos, span)
    rows = [slice(row, row + 1) for row in range(len(ids))]
    # Logits are valid until the next forward.
    return torch.cat([decoder.forward_row(ids[one], cache_pos[one], one.start, span).clone() for one in rows])


def probe_of(decoder: ComparedDecoder) -> Probe:
    """The logits probe at the shape of *decoder*."""
    return Probe.of(decoder.step.model, decoder.shape, decoder.step.plan.span)


def compare(decoder: ComparedDecoder, whose: str) -> None:
    """
    Compare logits with the stock model, and trees, copied rows and sampling with what they stand for.

    Args:
        decoder: The decoder; its cache is overwritten.

        whose: Name of the decoder in error messages.

    Raises:
        UnsupportedArchitecture: Logits or sampled tokens differ.
    """
    probe, step = probe_of(decoder), decoder.step
    probe.check(decoder.forward, whose)
    longest = decoder.shape.max_length
    several = len(decoder.spans) > 1
    if several:
        probe.check(partial(decoder.forward, span=longest), whose)
    if decoder.row_widths:
        probe.check(partial(_row_by_row, decoder), whose)
    if decoder.row_widths and several:
        probe.check(partial(_row_by_row, decoder, span=longest), whose)
    tolerance = TOLERANCE[step.model.dtype]
    check_trees(decoder, step.plan.span, tolerance, whose, probe.architecture)
    check_copies(decoder, decoder.spans, tolerance, whose, probe.architecture)
    check_sampling(decoder, tolerance, whose, probe.architecture)
