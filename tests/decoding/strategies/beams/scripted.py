"""A scripted decoder of any number of rows, which copies them or not."""

from typing import Any

import torch

from decodekit.testing import ScriptedDecoder

TABLE = torch.randn(31, 7, generator=torch.Generator().manual_seed(0))


def scripted(rows: int, copies: bool = False, **shape: Any) -> ScriptedDecoder:
    """A decoder of so many rows."""
    options = {"max_length": 24, "widths": (1, 4, 12), "scored_width": 4, "table": TABLE, **shape}
    return ScriptedDecoder(batch_size=rows, copies_rows=copies, **options)
