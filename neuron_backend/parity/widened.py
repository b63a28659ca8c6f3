"""Comparison of 16-bit models in float32, where rounding does not hide small errors of the architecture."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from ...decoding.protocols import DecoderShape
from ..models.weights import count_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# A copy in float32 takes 4 bytes a weight temporarily.
_MOST_WEIGHTS = 2**28

# More positions than probes read beyond the longest window and the widest forward.
_PROBED = 256


def may_be_widened(model: "PreTrainedModel") -> bool:
    """Whether *model* has 16 bits, and is small enough to be compared in float32 too."""
    return model.dtype in (torch.float16, torch.bfloat16) and count_weights(model) <= _MOST_WEIGHTS


def compared_length(shape: DecoderShape, window: int, tree_widths: Iterable[int] = ()) -> int:
    """Positions that a comparison reads: no cache of the whole length of *shape* is needed for it."""
    read = max(window if window < shape.max_length else 0, shape.widths[-1], *tree_widths)
    return min(shape.max_length, 2 * read + _PROBED)
