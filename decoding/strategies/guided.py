"""Classifier-free guidance."""

import math
from typing import Any

import attrs

from ..cache.slots import feeder_of
from ..engine.compatibility import check_decoder, how_to_score
from ..optional_protocols import AnyDecoder, decoders_of, is_bit_exact, runs_in_lockstep
from ..protocols import Decoder, DecoderShape
from ..validation import as_real, one_real
from .guided_feeder import GuidedFeeder
from .negative_prompts import negative_prompts


@attrs.frozen(eq=False, repr=False)
class Guided:
    """
    A decoder under classifier-free guidance: pushed from a negative prompt towards the prompt.

    Sanchez et al., 2023, `Stay on Topic with Classifier-Free Guidance <https://arxiv.org/abs/2306.17806>`_;
    transformers' ``guidance_scale`` and ``negative_prompt_ids``. A generator takes it in place of a decoder.
    Half of the rows of *decoder* hold the negative prompts, each followed by the same new tokens.

    Chains, samplers, stops and drafters apply to the guided logits. Log-probabilities of prompts are refused.

    >>> from decodekit.decoding import Generator, MaxNewTokens
    >>> from decodekit.testing import ScriptedDecoder
    >>> import torch
    >>> decoder = ScriptedDecoder(torch.eye(5), batch_size=2)
    >>> Guided(decoder, scale=1.5, negative=[1, 2])
    <Guided: scale=1.5, 1 row of 63 positions>
    >>> len(Generator(Guided(decoder, scale=1.5), stop=MaxNewTokens(3))([1]).ids[0])
    3
    """

    decoder: AnyDecoder
    """Two rows or more, of which half are left to a generation."""

    scale: float = attrs.field(converter=as_real, validator=one_real("finite", math.isfinite))
    """1 leaves the distribution after the prompt, 0 gives that after the negative; typically 1.25 to 3."""

    negative: Any = None
    """
    The negative prompt: one for all rows, or one for each, or a function from a prompt's ids to ids, as many
    as the prompt has at most: for example the question without its context (Shi et al., 2024,
    `Trusting Your Evidence: Hallucinate Less with Context-aware Decoding
    <https://arxiv.org/abs/2305.14739>`_). None: the last token of the prompt. With one for each row, requests
    of a :class:`~..serving.batcher.Batcher` are refused, as they take any row.
    """

    tokenizer: Any = None
    """Encodes a negative prompt that is a string or a chat."""

    shape: DecoderShape = attrs.field(init=False)
    """What a generation has: half of the rows, and the positions beside the longest given negative prompt."""

    _feeder: GuidedFeeder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Divide the rows, and encode the negative prompts."""
        check_decoder(self.decoder)
        whole = self.decoder.shape
        if whole.batch_size < 2:
            raise ValueError(
                f"'decoder' must have 2 rows for each prompt, compiled with batch_size=2 or more: got "
                f"{whole.batch_size}"
            )
        half = attrs.evolve(whole, batch_size=whole.batch_size // 2)
        negatives = negative_prompts(self.negative, half, self.tokenizer)
        # A prompt has one token at least, so this many fit on both sides.
        shape = attrs.evolve(half, max_length=half.max_length + 1 - negatives.longest)
        object.__setattr__(self, "shape", shape)
        feeder = GuidedFeeder(feeder_of(self.decoder), shape, self.scale, negatives)
        object.__setattr__(self, "_feeder", feeder)

    @property
    def decoders(self) -> tuple[Decoder, ...]:
        """See :class:`~..optional_protocols.OffersFeeder`."""
        return decoders_of(self.decoder)

    @property
    def bit_exact(self) -> bool:
        """See :class:`~..optional_protocols.BitExact`; the guidance of a column depends on no other."""
        return is_bit_exact(self.decoder)

    @property
    def in_lockstep(self) -> bool:
        """See :class:`~..optional_protocols.RunsInLockstep`."""
        return runs_in_lockstep(self.decoder)

    def feeder(self) -> GuidedFeeder:
        """See :class:`~..optional_protocols.OffersFeeder`."""
        return self._feeder

    def advise_width(self, columns: int) -> str:
        """See :class:`~..optional_protocols.AdvisesWidth`."""
        return how_to_score(self.decoder, columns)

    def __repr__(self) -> str:
        """The scale, the rows and the positions."""
        rows = "1 row" if self.shape.batch_size == 1 else f"{self.shape.batch_size} rows"
        return f"<Guided: scale={self.scale}, {rows} of {self.shape.max_length} positions>"
