"""Texts with and without a watermark."""

import torch

from decodekit.decoding import Drafter, Generator, MaxNewTokens, Processor, Sample
from decodekit.testing import ScriptedDecoder, last_token

VOCAB, TOKENS, ROWS = 64, 300, 2
# Flat enough for a mark to have a choice; each token has its own distribution after it.
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(3))


def texts(processors: Processor | None, drafter: Drafter | None = None) -> list[list[int]]:
    """Two texts of 300 tokens after prompts of different lengths."""
    decoder = ScriptedDecoder(TABLE, batch_size=ROWS, max_length=320, line=last_token)
    generator = Generator(
        decoder,
        processors=processors,
        sampler=Sample(seed=11),
        stop=MaxNewTokens(TOKENS),
        drafter=drafter,
        num_draft_tokens=4,
    )
    return generator([[1, 2, 3], [4]]).ids
