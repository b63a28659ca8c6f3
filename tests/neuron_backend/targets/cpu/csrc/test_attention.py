"""The attention kernel against a softmax in double precision."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings, strategies as st

from decodekit.neuron_backend.kv_cache.masks import hidden
from decodekit.neuron_backend.targets.cpu.kernel_library import DTYPES, Library
from decodekit.neuron_backend.threads import on_threads

from .....toolchain_mark import needs_toolchain

pytestmark = needs_toolchain

SCALE = 0.2

# Rounding of float32 sums, of a result's own dtype, and of exponentials, which have 20 bits.
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@cache
def library(dtype, limit):
    """Compiled once."""
    return Library.compiled(dtype, limit=limit)


def columns_over_a_cache(batch, width, groups, sharing, slots, key_dim, value_dim, dtype, seed):
    """Queries; keys and values, the first slots of longer buffers; a mask of some slots."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes):
        return torch.randn(*sizes, generator=generator).to(dtype)

    query = normal(batch, width, groups * sharing, key_dim)
    keys = normal(batch, groups, slots + 3, key_dim)[:, :, :slots]
    values = normal(batch, groups, slots + 5, value_dim)[:, :, :slots]
    # Of any density, with long runs of hidden slots.
    seen = torch.rand(batch, 1, width, slots, generator=generator) < torch.rand(1, generator=generator)
    seen[..., slots // 3 : slots // 3 + 100] = False
    seen.scatter_(3, torch.randint(slots, (batch, 1, width, 1), generator=generator), True)
    mask = torch.where(seen, 0.0, hidden(dtype)).to(dtype)
    return query, keys, values, mask.expand(-1, groups * sharing, -1, -1)


def softmax_attention(query, keys, values, mask, sinks=None, scale=SCALE, cap=0.0):
    """Attention by the formula."""
    sharing = query.shape[2] // keys.shape[1]
    keys, values = (states.double().repeat_interleave(sharing, 1) for states in (keys, values))
    scores = query.double().transpose(1, 2) @ keys.mT * scale
    if cap:
        scores = cap * (scores / cap).tanh()
    scores = scores + mask.double()
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(*scores.shape[:3], 1)], 3)
    return (scores.softmax(-1)[..., : keys.shape[2]] @ values).transpose(1, 2)


def a_scoring(heads, dtype, kind, seed):
    """Sinks, scale and cap."""
    generator = torch.Generator().manual_seed(seed)
    sinks = (3 * torch.randn(heads, generator=generator)).to(dtype) if "sinks" in kind else None
    # A cap that most scores are beyond.
    return sinks, SCALE, 0.7 if "cap" in kind else 0.0


cases = {
    "sizes": st.tuples(
        st.integers(1, 3),
        # A few columns, and more than share a reading of the keys.
        st.integers(1, 6) | st.sampled_from([16, 17, 40]),
        st.integers(1, 3),
        st.sampled_from([1, 2, 3, 4, 7]),
        # Less than a piece, whole pieces, and a remainder.
        st.integers(1, 70) | st.sampled_from([128, 300]),
        st.integers(1, 40) | st.sampled_from([64, 80, 128]),
        st.integers(1, 40) | st.sampled_from([64, 80, 128]),
    ),
    "dtype": st.sampled_from(sorted(DTYPES, key=str)),
    # Both are compiled for each dtype: of the quick tests, one.
    "limit": st.sampled_from(["amx", "portable"] if settings.default.max_examples > 20 else ["amx"]),
    "seed": st.integers(0, 1000),
    "kind": st.sampled_from(["plain", "plain", "cap", "sinks", "cap and sinks"]),
}


@settings(deadline=None)
@given(**cases)
def test_is_the_mean_of_values_by_a_softmax_of_scores(sizes, dtype, limit, seed, kind):
    """For any sizes, with shared key heads or not."""
    given = columns_over_a_cache(*sizes, dtype, seed)
    scoring = a_scoring(given[0].shape[2], dtype, kind, seed)

    found = library(dtype, limit).attention(*given, *scoring)

    error = (found.double() - softmax_attention(*given, *scoring)).abs().max()
    assert error <= ROUNDING[dtype] * given[2].double().abs().max()


@settings(deadline=None)
@given(**cases, more=st.integers(1, 200))
def test_a_column_does_not_depend_on_others(sizes, dtype, limit, seed, kind, more):
    """Bit-identical without the other rows and columns, and over a longer span of hidden slots."""
    query, keys, values, mask = columns_over_a_cache(*sizes, dtype, seed)
    attention = library(dtype, limit).attention
    scoring = a_scoring(query.shape[2], dtype, kind, seed)
    found = attention(query, keys, values, mask, *scoring)

    def longer(states):
        return torch.cat([states, torch.ones_like(states[:, :, :1]).expand(-1, -1, more, -1)], 2)

    behind = torch.full((*mask.shape[:3], more), hidden(dtype), dtype=dtype)
    masks = torch.cat([mask, behind], 3)
    for row in range(len(query)):
        for column in range(query.shape[1]):
            here, there = slice(row, row + 1), slice(column, column + 1)
            alone = attention(
                query[here, there].contiguous(),
                longer(keys[here]),
                longer(values[here]),
                masks[here, :, there],
                *scoring,
            )
            assert torch.equal(found[here, there], alone)


def test_biases_by_head():
    """As in ALiBi: each head has its own mask, and sees other slots."""
    query, keys, values, _ = columns_over_a_cache(2, 2, 2, 2, 300, 16, 16, torch.float32, 0)
    slots, head = torch.arange(300), torch.arange(4)[:, None, None]
    biases = torch.where(slots // 70 == head, -slots / 50 * (head + 1), torch.finfo(torch.float32).min)
    mask = biases.expand(2, 4, 2, 300)

    found = library(torch.float32, False).attention(query, keys, values, mask, None, SCALE, 0.0)

    torch.testing.assert_close(
        found.double(), softmax_attention(query, keys, values, mask), atol=1e-5, rtol=0
    )


def test_nan_affects_only_columns_that_attend_to_it():
    """It makes their result NaN, and is not read in hidden pieces."""
    query, keys, values, mask = columns_over_a_cache(1, 1, 1, 1, 130, 16, 16, torch.float32, 0)
    keys[0, 0, 100] = float("nan")
    attention = library(torch.float32, False).attention
    half_seen = torch.zeros_like(mask)
    half_seen[..., 64:] = torch.finfo(torch.float32).min

    assert attention(query, keys, values, torch.zeros_like(mask), None, SCALE, 0.0).isnan().all()
    assert attention(query, keys, values, half_seen, None, SCALE, 0.0).isfinite().all()


def test_several_threads():
    """Pieces divided among several threads."""
    given = columns_over_a_cache(2, 4, 3, 3, 2000, 64, 64, torch.bfloat16, 0)

    found = library(torch.bfloat16, False).attention(*given, None, SCALE, 0.0)

    torch.testing.assert_close(found.double(), softmax_attention(*given), atol=2e-2, rtol=0)


@pytest.mark.parametrize("width", [5, 16, 17, 70])
def test_a_column_has_the_same_bits_alone(width):
    """Whatever columns are beside it, in any number of threads."""
    query, keys, values, mask = columns_over_a_cache(2, width, 2, 3, 200, 64, 48, torch.bfloat16, width)
    kernels = library(torch.bfloat16, False)
    for threads in (1, 3):
        with on_threads(threads):
            together = kernels.attention(query, keys, values, mask, None, SCALE, 0.0)
            alone = [
                kernels.attention(
                    query[:, i : i + 1].contiguous(),
                    keys,
                    values,
                    mask[:, :, i : i + 1].contiguous(),
                    None,
                    SCALE,
                    0.0,
                )
                for i in range(width)
            ]

        assert torch.equal(torch.cat(alone, dim=1), together)
