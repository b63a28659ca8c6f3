"""
The comparison that every construction makes of forwards that choose.

With forwards that do not, and with the same choice made eagerly of their logits. A compiler that
gets either wrong is found out before anybody decodes.
"""

from typing import Protocol

import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.protocols import Decoder, SamplesOnDevice
from ...decoding.sampling import noise
from ..models.unsupported import UnsupportedArchitecture
from ..on_device_sampling.fusion import Fusion

_COLUMNS = 24
"""How many choices are compared at each width, at least."""

_TIES = 1
"""How many of them may fall otherwise: where the two best are within rounding of each other."""


class SamplingDecoder(Decoder, SamplesOnDevice, Protocol):
    """A decoder some of whose forwards choose."""

    fusion: Fusion | None
    """What they choose by; None if none does."""


def check_sampling(decoder: SamplingDecoder, tolerance: float, whose: str, architecture: str) -> None:
    """
    Compare every width that chooses. The cache holds other tokens afterwards.

    Args:
        decoder: Whose plain forwards are right.

        tolerance: The largest difference of logits allowed, relative to the largest.

        whose: What to call it in the error.

        architecture: Of its model.

    Raises:
        UnsupportedArchitecture: It failed, or logits or choices differ.
    """
    for width in decoder.sampling_widths:
        try:
            off, differing = _differences(decoder, width)
        except Exception as error:
            raise UnsupportedArchitecture(
                architecture, f"{whose} failed where it chooses at width {width}: {error!r}"
            ) from error
        # Written so that a NaN refuses as well.
        if not off <= tolerance:
            raise UnsupportedArchitecture(
                architecture,
                f"{whose} scores otherwise where it chooses, at width {width} by {off:.3g} of the largest "
                f"logit, more than rounding explains ({tolerance:.3g})",
            )
        if differing > _TIES:
            raise UnsupportedArchitecture(
                architecture,
                f"{whose} chooses another token in {differing} columns of width {width} than its logits say",
            )


def _differences(decoder: SamplingDecoder, width: int) -> tuple[float, int]:
    """By how much logits differ, of the largest; and in how many columns the choice does."""
    assert decoder.fusion is not None
    shape, choice = decoder.shape, decoder.fusion.step.sampling
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(shape.vocab_size, (shape.batch_size, 1, shape.max_length + 1), generator=generator)
    starts = list(range(0, shape.max_length - width + 1, width))
    off, differing = 0.0, 0
    for start in starts[: -(-_COLUMNS // (shape.batch_size * width))]:
        cache_pos = torch.full((shape.batch_size,), start)
        fed = ids[:, 0, start : start + width].contiguous()
        plain = decoder.forward(fed, cache_pos).clone()
        history = _history(ids, start, width)
        chosen, scores = decoder.forward_and_sample(fed, cache_pos, history)
        off = max(off, _largest(scores.logits - plain) / _largest(plain))
        drawn_with = choice.sampler.noise(history, shape.vocab_size)
        with torch.no_grad():
            expected = choice.sample(scores.logits, history, *drawn_with)
        differing += int((expected != chosen).sum())
    return off, differing


def _history(ids: Tensor, start: int, width: int) -> History:
    """The tokens before what follows each of *width* columns from *start* on."""
    length = (start + 1 + torch.arange(width)).repeat(len(ids), 1)
    return History(ids, length, torch.ones(len(ids)).long(), noise.random_streams(torch.arange(len(ids)), 0))


def _largest(logits: Tensor) -> float:
    return float(logits.abs().max())
