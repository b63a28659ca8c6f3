"""Numbers that are a function of where they are used."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decodekit.decoding import noise

INT64 = st.integers(-(2**63), 2**63 - 1)


def _splitmix(key: int, value: int) -> int:
    """The mixer in Python's whole numbers."""
    mask = 2**64 - 1
    x = (key + 0x9E3779B97F4A7C15 + value) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


class TestMix:
    @given(INT64, INT64)
    def test_equals_unsigned_arithmetic(self, key: int, value: int) -> None:
        """64-bit arithmetic that wraps around gives the bits that the published mixer gives."""
        mixed = noise.mix(*(np.array([x % 2**64], dtype=np.uint64) for x in (key, value)))

        assert [_splitmix(key % 2**64, value % 2**64)] == mixed.tolist()

    def test_starts_splitmix64(self) -> None:
        """The first output of SplitMix64 from seed 0 is the published one."""
        zero = np.zeros(1, dtype=np.uint64)

        assert [0xE220A8397B1DCDAF] == noise.mix(zero, zero).tolist()


class TestUniform:
    def test_never_meets_the_ends(self) -> None:
        """The smallest and the largest 52 bits lie inside the open interval, and so do their Gumbels."""
        ends = (torch.tensor([0.0, 2.0**52 - 1], dtype=torch.float64) + 0.5) * 2.0**-52
        gumbels = -torch.log(-torch.log(ends))

        assert 0.0 < ends[0]
        assert ends[1] < 1.0
        assert torch.isfinite(gumbels).all()

    def test_keys_do_not_collide(self) -> None:
        """No two of 200,000 neighbouring keys give the same number, as linear sums of them would."""
        stream, position = torch.arange(20)[:, None, None, None], torch.arange(50)[:, None, None]
        purpose, index = 1, torch.arange(200)
        u = noise.uniform(stream, position, purpose, index)

        assert 200_000 == u.numel() == u.unique().numel()

    @pytest.mark.parametrize("purpose", [noise.BLOCK, noise.TOKEN])
    def test_fills_the_interval_evenly(self, purpose: int) -> None:
        """Of 10^6 numbers in 100 bins, chi-square stays within 5 sigma of its mean, 99 ± 5·14.1."""
        u = noise.uniform(torch.arange(1000)[:, None], torch.tensor(3), purpose, torch.arange(1000))
        counts = torch.histc(u.float(), bins=100, min=0, max=1)
        chi2 = float(((counts - 10_000) ** 2 / 10_000).sum())

        assert abs(chi2 - 99) < 5 * math.sqrt(2 * 99)

    def test_neighbouring_keys_are_uncorrelated(self) -> None:
        """Numbers at neighbouring streams, positions, purposes and indices correlate within 5/√n."""
        at = [torch.arange(100)[:, None, None], torch.arange(100)[:, None], 1, torch.arange(100)]
        u = noise.uniform(*at).flatten() - 0.5
        for key in range(4):
            moved = [x + (i == key) for i, x in enumerate(at)]
            v = noise.uniform(*moved).flatten() - 0.5

            assert abs(float((u * v).mean() * 12)) < 5 / math.sqrt(len(u))


class TestStreams:
    @given(st.integers(), st.integers(), st.integers(0, 1000))
    def test_differ_by_seed_and_number(self, seed: int, other: int, number: int) -> None:
        """Streams are equal for equal seeds (modulo 2^64) and numbers only."""
        row = torch.tensor([number])

        assert torch.equal(noise.streams(row, seed), noise.streams(row, seed))
        assert torch.equal(noise.streams(row, seed), noise.streams(row, other)) == (
            (seed - other) % 2**64 == 0
        )
        assert not torch.equal(noise.streams(row, seed), noise.streams(row + 1, seed))
