"""Hypothesis strategies."""

import torch
from hypothesis import settings, strategies as st
from torch import Tensor

from decodekit.decoding.history import History


@st.composite
def windows(
    draw: st.DrawFn, dtype: torch.dtype | None = None, masked: bool = True, vocab: int | None = None
) -> tuple[Tensor, History]:
    """
    Logits ``[batch, width, vocab]`` without ties, and a history with garbage behind it.

    One path or one a column; lengths from 0 to the capacity; few distinct tokens, so that they
    repeat; with *masked* some entries are ``-inf``, now and then all of a row.
    """
    batch, width = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    vocab = draw(st.integers(4, 12)) if vocab is None else vocab
    capacity = draw(st.integers(width, 14))
    paths = draw(st.sampled_from((1, width)))
    dtype = draw(st.sampled_from((torch.float32, torch.float64))) if dtype is None else dtype
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))

    logits = 3 * torch.randn(batch, width, vocab, generator=rng, dtype=dtype)
    if masked and draw(st.booleans()):
        kept = torch.rand(batch, width, 1, generator=rng)
        logits[torch.rand(batch, width, vocab, generator=rng) > kept] = -torch.inf
        if draw(st.booleans()):
            logits[0, 0] = -torch.inf

    ids = torch.randint(0, draw(st.integers(1, vocab)), (batch, paths, capacity), generator=rng)
    first = torch.randint(0, capacity - width + 2, (batch, 1), generator=rng)
    length = first + torch.arange(width)
    # The prompt may be the whole text, or empty.
    prompt = (torch.rand(batch, generator=rng) * (first[:, 0] + 1)).long()
    behind = torch.arange(capacity) >= length.amax(dim=1)[:, None, None]
    garbage = draw(st.sampled_from((-1, 0, 10**12)))
    return logits, History(ids.masked_fill(behind, garbage), length, prompt, torch.arange(batch))


def examples(count: int) -> int:
    """*count* in the full profile, half of it in the half one, a fifth in the quick one."""
    divisor = {30: 2, 20: 5}.get(settings.default.max_examples, 1)
    return max(3, count // divisor)
