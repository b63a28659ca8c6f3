"""The comparison of a whole decoder with the stock model."""

from functools import partial
from typing import Protocol

from torch import Tensor

from ..step import DecoderStep
from .logits_probe import TOLERANCE, Probe
from .sampling_probe import SamplingDecoder, check_sampling
from .tree_probe import TreeDecoder, check_trees


class ComparedDecoder(TreeDecoder, SamplingDecoder, Protocol):
    """A decoder that has its model."""

    spans: tuple[int, ...]

    @property
    def step(self) -> DecoderStep:
        """The stock model's forward over the cache."""
        ...

    def forward(self, ids: Tensor, cache_pos: Tensor, span: int | None = None) -> Tensor:
        """As :meth:`~...decoding.protocols.Decoder.forward`, over one of :attr:`spans`."""
        ...


def probe_of(decoder: ComparedDecoder) -> Probe:
    """The comparison with the stock model, at the shape of *decoder*."""
    return Probe.of(decoder.step.model, decoder.shape, decoder.step.plan.span)


def compare(decoder: ComparedDecoder, whose: str) -> None:
    """
    Compare with the stock model, trees with chains, and forwards that choose with those that do not.

    Args:
        decoder: The cache holds other tokens afterwards.

        whose: What to call it in the error.

    Raises:
        UnsupportedArchitecture: Logits or choices differ.
    """
    probe, step = probe_of(decoder), decoder.step
    probe.check(decoder.forward, whose)
    if len(decoder.spans) > 1:
        probe.check(partial(decoder.forward, span=decoder.shape.max_length), whose)
    tolerance = TOLERANCE[step.model.dtype]
    check_trees(decoder, step.plan.span, tolerance, whose, probe.architecture)
    check_sampling(decoder, tolerance, whose, probe.architecture)
