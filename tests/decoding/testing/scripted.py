"""A scripted decoder of three rows."""

import torch

from decodekit.testing import ScriptedDecoder

TABLE = torch.randn(31, 6, generator=torch.Generator().manual_seed(0))


def scripted(**shape: object) -> ScriptedDecoder:
    """A decoder of three rows."""
    return ScriptedDecoder(TABLE, batch_size=3, max_length=24, widths=(1, 4, 12), scored_width=4, **shape)
