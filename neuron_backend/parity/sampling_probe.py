"""
Comparison of on-device with eager sampling, made whenever a decoder with fused sampling is constructed.

Logits of forwards that sample are compared with those of plain forwards, and sampled tokens with eager
sampling from the same logits, so that a miscompiled program is detected before decoding.
"""

from typing import Protocol

import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.protocols import Decoder, SamplesOnDevice
from ...decoding.sampling import noise
from ..models.unsupported import UnsupportedArchitecture
from ..on_device_sampling.fusion import Fusion
from .magnitude import magnitude

_COLUMNS = 24
"""Minimum number of sampled tokens that are compared at each width."""

_TIES = 1
"""How many of them may differ, because the two best scores are within rounding of each other."""


class SamplingDecoder(Decoder, SamplesOnDevice, Protocol):
    """A decoder with forwards that sample."""

    fusion: Fusion | None
    """The fused chain and sampler; None if there are none."""


def check_sampling(decoder: SamplingDecoder, tolerance: float, whose: str, architecture: str) -> None:
    """
    Compare every width that samples. The cache is overwritten.

    Args:
        decoder: A decoder whose plain forwards have been compared already.

        tolerance: Largest difference of logits allowed, relative to the largest logit.

        whose: Name of the decoder in error messages.

        architecture: Architecture of its model.

    Raises:
        UnsupportedArchitecture: A forward failed, or logits or sampled tokens differ.
    """
    for width in decoder.sampling_widths:
        try:
            off, differing = _differences(decoder, width)
        except Exception as error:
            raise UnsupportedArchitecture(
                architecture, f"{whose} failed to sample at width {width}: {error!r}"
            ) from error
        # Also true for NaN.
        if not off <= tolerance:
            raise UnsupportedArchitecture(
                architecture,
                f"{whose} gives other logits when it samples, at width {width} by {off:.3g} of the largest "
                f"logit, more than rounding explains ({tolerance:.3g})",
            )
        if differing > _TIES:
            raise UnsupportedArchitecture(
                architecture,
                f"{whose} samples other tokens in {differing} columns of width {width} than its logits give",
            )


def _differences(decoder: SamplingDecoder, width: int) -> tuple[float, int]:
    """Largest relative difference of logits, and number of columns whose sampled token differs."""
    assert decoder.fusion is not None
    shape, sampling = decoder.shape, decoder.fusion.step.sampling
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(shape.vocab_size, (shape.batch_size, 1, shape.max_length + 1), generator=generator)
    starts = list(range(0, shape.max_length - width + 1, width))
    off, differing = [], 0
    for start in starts[: -(-_COLUMNS // (shape.batch_size * width))]:
        cache_pos = torch.full((shape.batch_size,), start)
        fed = ids[:, 0, start : start + width].contiguous()
        plain = decoder.forward(fed, cache_pos).clone()
        history = _history(ids, start, width)
        sampled, scores = decoder.forward_and_sample(fed, cache_pos, history)
        # A model may give nothing but zeros.
        off.append((scores.logits - plain) / (magnitude(plain) or 1.0))
        noises = sampling.sampler.noise(history, shape.vocab_size)
        with torch.no_grad():
            expected = sampling.sample(scores.logits, history, *noises)
        differing += int((expected != sampled).sum())
    return magnitude(*off), differing


def _history(ids: Tensor, start: int, width: int) -> History:
    """The tokens up to each of *width* columns from *start* on."""
    length = (start + 1 + torch.arange(width)).repeat(len(ids), 1)
    return History(ids, length, torch.ones(len(ids)).long(), noise.random_streams(torch.arange(len(ids)), 0))
