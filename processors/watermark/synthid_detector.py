"""Detector of the SynthID watermark."""

from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from ...decoding.validation import as_real, one_real
from ..parameter import as_token_ids
from .detector_input import as_token_lists
from .synthid import SynthIDWatermark


@attrs.frozen(eq=False)
class SynthIDDetection:
    """Detection result; each field is ``[batch]``."""

    num_tokens: Tensor
    """Number of scored tokens, int64: those with a new context in the text."""

    mean: Tensor
    """Share of ones among their g-values, float64. In unmarked text about 0.5."""

    weighted_mean: Tensor
    """The same with layers weighted linearly from 10 to 1, float64: early layers carry more signal."""

    z_score: Tensor
    """Excess of the weighted mean over unmarked text in standard deviations, float64."""

    p_value: Tensor
    """One-sided p-value of the z-score under the normal distribution, float64."""

    prediction: Tensor
    """Whether the text is classified as watermarked, bool."""


@attrs.frozen(eq=False)
class SynthIDDetector:
    """
    Detect a watermark from the share of ones among a text's g-values.

    In unmarked text each g-value is a Bernoulli draw from the table, so the mean of *n* has the
    Bernoulli variance over *n*, which gives the z-score. No training is needed.

    Dathathri et al., 2024, `Scalable watermarking for identifying large language model outputs
    <https://doi.org/10.1038/s41586-024-08025-4>`_: the mean and the weighted-mean score. The
    Bayesian score needs weights trained for a model; Hugging Face's ``BayesianDetectorModel`` takes
    the output of :meth:`evidence`.
    """

    watermark: SynthIDWatermark = attrs.field(validator=validators.instance_of(SynthIDWatermark))
    """With the parameters used for generation."""

    eos: tuple[int, ...] = attrs.field(default=(), converter=as_token_ids)
    """
    End-of-sequence token ids: the text is cut before the first of them. May be given as a single
    id.
    """

    z_threshold: float = attrs.field(
        default=3.0, converter=as_real, validator=one_real("a number", lambda z: z == z)
    )
    """A text above it is classified as watermarked. At 3, one unmarked text in 741 is."""

    @watermark.validator
    def _check_keys(self, attribute: "attrs.Attribute[Any]", value: SynthIDWatermark) -> None:
        if not value.keys:
            raise ValueError(f"'watermark' must have keys: got {value!r}")

    def __call__(self, texts: Any, lengths: Any = None) -> SynthIDDetection:
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
        g_values, mask = self.evidence(texts, lengths)
        num_tokens = mask.sum(dim=-1)
        n = num_tokens.double()
        ones = (g_values * mask[..., None]).sum(dim=-2) / n[:, None]  # [batch, keys]
        weights = torch.linspace(10, 1, ones.shape[-1], dtype=torch.float64)
        weights = weights / weights.sum()
        weighted_mean = (ones * weights).sum(dim=-1)
        p = self.watermark.heads
        z = (weighted_mean - p) / (p * (1 - p) * weights.square().sum() / n).sqrt()
        p_value = 0.5 * torch.special.erfc(z / 2**0.5)
        return SynthIDDetection(
            num_tokens, ones.mean(dim=-1), weighted_mean, z, p_value, z > self.z_threshold
        )

    def evidence(self, texts: Any, lengths: Any = None) -> tuple[Tensor, Tensor]:
        """
        The g-values and mask behind a score; arguments as in a call.

        Returns:
            g-values ``[batch, tokens, keys]`` int64, from the first token with a context on, and
            a mask of the tokens that count, ``[batch, tokens]`` bool. Hugging Face's
            ``BayesianDetectorModel`` takes both as they are.
        """
        first = self.watermark.ngram_len - 1
        rows = as_token_lists(texts, lengths, first + 1, self.eos)
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
        for row, text in enumerate(rows):
            ids[row, : len(text)] = torch.tensor(text)
        length = torch.tensor([len(text) for text in rows])
        within = torch.arange(first, ids.shape[1]) < length[:, None]
        return self.watermark.g_values(ids).long(), within & self.watermark.fresh_contexts(ids)
