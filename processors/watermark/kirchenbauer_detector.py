"""Detector of the Kirchenbauer watermark."""

from collections import Counter
from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from ...decoding.validation import as_real, one_real
from ..parameter import a_bool
from .detector_input import as_token_lists
from .kirchenbauer import KirchenbauerWatermark


@attrs.frozen(eq=False)
class KirchenbauerDetection:
    """Detection result; each field is ``[batch]``."""

    num_tokens: Tensor
    """Number of scored tokens, int64: those with a context in the text."""

    num_green: Tensor
    """Number of green tokens among them, int64."""

    green_fraction: Tensor
    """Share of green tokens, float64. In unmarked text about ``greenlist_ratio``."""

    z_score: Tensor
    """Excess of green tokens over unmarked text in standard deviations, float64."""

    p_value: Tensor
    """One-sided p-value of the z-score under the normal distribution, float64."""

    prediction: Tensor
    """Whether the text is classified as watermarked, bool."""


@attrs.frozen(eq=False)
class KirchenbauerDetector:
    """
    Detect a watermark by counting green tokens.

    In unmarked text each token is green with probability γ, the list's share of the vocabulary: of
    *n* tokens γn are, with standard deviation √(nγ(1 - γ)), the unit of the z-score (Kirchenbauer et al.,
    2023, `A Watermark for Large Language Models <https://arxiv.org/abs/2301.10226>`_).

    >>> from decodekit.processors import KirchenbauerDetector, KirchenbauerWatermark
    >>> detect = KirchenbauerDetector(KirchenbauerWatermark(vocab_size=8, greenlist_ratio=0.5))
    >>> detect([[1, 2, 3, 4, 5], [7, 7, 7]]).num_tokens.tolist()
    [4, 2]
    """

    watermark: KirchenbauerWatermark = attrs.field(validator=validators.instance_of(KirchenbauerWatermark))
    """
    With the parameters used for generation, and its ``vocab_size``. The bias is ignored.
    """

    ignore_repeated_ngrams: bool = attrs.field(default=False, validator=a_bool)
    """
    Whether each n-gram counts once. Repetitive text repeats its green tokens, which are then not
    independent evidence.
    """

    z_threshold: float = attrs.field(
        default=3.0, converter=as_real, validator=one_real("a number", lambda z: z == z)
    )
    """A text above it is classified as watermarked. At 3, one unmarked text in 741 is."""

    @watermark.validator
    def _check_vocabulary(self, attribute: "attrs.Attribute[Any]", value: KirchenbauerWatermark) -> None:
        if value.vocab_size is None:
            raise ValueError(f"'watermark' must have its vocab_size given: got {value!r}")

    def __call__(self, texts: Any, lengths: Any = None) -> KirchenbauerDetection:
        """
        Score *texts*, ideally the generated tokens alone: only those are watermarked.

        Args:
            texts: One list of ids, a list of them, each of its own length, or an integer array
                ``[batch, length]`` (torch or numpy).

            lengths: Number of tokens of each text, if padding follows.

        Raises:
            TypeError: *texts* are not token ids.

            ValueError: A text shorter than one token and its context.
        """
        rows = [self._ngrams(text) for text in as_token_lists(texts, lengths, self.watermark.ngram)]
        num_tokens = torch.tensor([ngrams.total() for ngrams in rows])
        num_green = torch.tensor([self._count_green(ngrams) for ngrams in rows])
        γ, n, green = self.watermark.greenlist_ratio, num_tokens.double(), num_green.double()
        z = (green - γ * n) / (n * γ * (1 - γ)).sqrt()
        p_value = 0.5 * torch.special.erfc(z / 2**0.5)
        return KirchenbauerDetection(num_tokens, num_green, green / n, z, p_value, z > self.z_threshold)

    def _ngrams(self, text: list[int]) -> Counter[tuple[int, ...]]:
        n = self.watermark.ngram
        found = Counter(tuple(text[end - n : end]) for end in range(n, len(text) + 1))
        return Counter(found.keys()) if self.ignore_repeated_ngrams else found

    def _count_green(self, ngrams: Counter[tuple[int, ...]]) -> int:
        return sum(times for ngram, times in ngrams.items() if self.watermark.is_green(ngram))
