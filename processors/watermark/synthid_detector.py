"""Finding a watermark by tournament."""

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
    """What was found, text by text; each ``[batch]``."""

    num_tokens: Tensor
    """How many tokens were looked at, int64: those with a context in the text, and a new one."""

    mean: Tensor
    """The share of ones among their g-values, float64. In unmarked text about a half."""

    weighted_mean: Tensor
    """The same with the layers weighted from 10, the first, to 1, float64: early layers mark more."""

    z_score: Tensor
    """How many standard deviations the weighted mean lies above unmarked text's, float64."""

    p_value: Tensor
    """How likely an unmarked text is to get as far, float64, by the normal distribution."""

    prediction: Tensor
    """Whether the text is taken for marked, bool."""


@attrs.frozen(eq=False)
class SynthIDDetector:
    """
    Count the ones among the g-values of a text.

    In unmarked text each g-value is a toss of one of the table's coins, so the mean of *n* has the
    variance of a coin over *n*, and a score its probability. Nothing needs to be trained.

    Dathathri et al., 2024, `Scalable watermarking for identifying large language model outputs
    <https://doi.org/10.1038/s41586-024-08025-4>`_: the mean and the weighted-mean score. Their
    Bayesian score needs weights trained for a model; Hugging Face's ``BayesianDetectorModel`` that
    has them takes what :meth:`evidence` gives.
    """

    watermark: SynthIDWatermark = attrs.field(validator=validators.instance_of(SynthIDWatermark))
    """With the parameters that the text was generated with."""

    eos: tuple[int, ...] = attrs.field(default=(), converter=as_token_ids)
    """
    The tokens that end a text: the first of them and what follows are not looked at. One id may be
    given alone.
    """

    z_threshold: float = attrs.field(
        default=3.0, converter=as_real, validator=one_real("a number", lambda z: z == z)
    )
    """Above it, a text is taken for marked. At 3 one unmarked text in 741 is."""

    @watermark.validator
    def _check_keys(self, attribute: "attrs.Attribute[Any]", value: SynthIDWatermark) -> None:
        if not value.keys:
            raise ValueError(f"'watermark' must have keys: got {value!r}")

    def __call__(self, texts: Any, lengths: Any = None) -> SynthIDDetection:
        """
        Look at *texts*, best at the generated tokens alone: nothing else in them is marked.

        Args:
            texts: One list of ids, a list of them, each of its own length, or an integer array
                ``[batch, length]`` (torch or numpy).

            lengths: How many tokens of each text count, where padding follows.

        Raises:
            TypeError: Something else than ids.

            ValueError: A text too short to hold one token and its context.
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
        What a score is made of; arguments as in a call.

        Returns:
            g-values ``[batch, tokens, keys]`` int64, from the first token that has a context on,
            and which of those tokens count, ``[batch, tokens]`` bool. Hugging Face's
            ``BayesianDetectorModel`` takes the two as they are.
        """
        first = self.watermark.ngram_len - 1
        rows = as_token_lists(texts, lengths, first + 1, self.eos)
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
        for row, text in enumerate(rows):
            ids[row, : len(text)] = torch.tensor(text)
        length = torch.tensor([len(text) for text in rows])
        within = torch.arange(first, ids.shape[1]) < length[:, None]
        return self.watermark.g_values(ids).long(), within & self.watermark.fresh_contexts(ids)
