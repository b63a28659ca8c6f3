"""Numbers that are a function of where they are used."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding.sampling import noise

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


@given(st.integers(1, 10**12))
def test_the_root_of_the_vocabulary_is_rounded_up(vocab: int) -> None:
    """A block is the smallest number whose square holds the vocabulary, exactly for squares too."""
    size = noise.block_size(vocab)

    assert (size - 1) ** 2 < vocab <= size**2
    assert size == noise.block_size(size**2)


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

        assert torch.equal(noise.random_streams(row, seed), noise.random_streams(row, seed))
        assert torch.equal(noise.random_streams(row, seed), noise.random_streams(row, other)) == (
            (seed - other) % 2**64 == 0
        )
        assert not torch.equal(noise.random_streams(row, seed), noise.random_streams(row + 1, seed))


class TestCoin:
    def test_is_the_number_below_the_probability(self) -> None:
        """Key by key; at 0 and NaN never, at 1 and above always."""
        position, chances = torch.arange(1000), torch.linspace(0, 1, 7, dtype=torch.float64)[:, None]
        keys = (torch.tensor([5]), position, noise.XTC, torch.zeros_like(position))
        u = noise.uniform(*keys)

        assert torch.equal(u < chances, noise.coin(*keys, chances))
        assert torch.equal(u < 0.1, noise.coin(*keys, 0.1))
        assert not noise.coin(*keys, torch.tensor([[0.0], [torch.nan]])).any()
        assert noise.coin(*keys, torch.tensor([[1.0], [2.0], [torch.inf]])).all()


class TestDraw:
    def test_is_a_draw_from_the_weights(self) -> None:
        """Of 100,000 draws each token's share is within 5 sigma; weights need not add up to 1."""
        n, weights = 100_000, torch.tensor([0.0, 1.0, 2.0, 0.0, 5.0, 0.0], dtype=torch.float64)
        position = torch.arange(n)
        drawn = noise.draw(torch.tensor([7]), position, noise.RESIDUAL, position * 0, weights.expand(n, -1))
        expected = weights / weights.sum()
        sigma = (expected * (1 - expected) / n).sqrt()

        assert ((drawn.bincount(minlength=6) / n - expected).abs() <= 5 * sigma).all()

    @pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53], ids=["lowest", "highest"])
    def test_never_is_one_of_no_weight(self, u: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not at the ends of the interval either, whatever the sum."""
        monkeypatch.setattr(noise, "uniform", lambda *keys: torch.tensor([u], dtype=torch.float64))
        zero = torch.tensor([0])
        for scale in (1.0, 1 / 3, 1e-300, 1e300, 0.1):
            weights = scale * torch.tensor([[0.0, 0.1, 0.0, 0.7, 0.0]], dtype=torch.float64)

            assert [1 if u == 0.0 else 3] == noise.draw(zero, zero, noise.RESIDUAL, zero, weights).tolist()

    def test_of_nothing_is_none(self) -> None:
        """-1 where all weights are 0, beside rows that have some."""
        zero, weights = torch.zeros(2).long(), torch.tensor([[0.0, 0.0], [0.0, 3.0]]).double()

        assert [-1, 1] == noise.draw(zero, zero, noise.RESIDUAL, zero, weights).tolist()


class TestFolded:
    def test_differ_by_stream_purpose_and_start(self) -> None:
        """No two of 3 × 2 × 50 are equal, nor equal to the streams they come of."""
        random_streams = torch.arange(3).repeat_interleave(50)
        start = torch.arange(50).repeat(3)
        folded = torch.cat([noise.folded(random_streams, why, start) for why in (noise.DRAFT, noise.ACCEPT)])

        assert 303 == torch.cat([folded, random_streams]).unique().numel()


class Fixed:
    """Answers everything with yes and the last token, and notes the keys."""

    def __init__(self) -> None:
        self.keys: list[tuple[int, ...]] = []

    def coin(self, key: tuple[int, ...], probability: float) -> bool:
        self.keys.append(key)
        return True

    def draw(self, key: tuple[int, ...], weights: list[float]) -> int:
        self.keys.append(key)
        return len(weights) - 1

    def folded(self, stream: int, result: int) -> None:
        self.keys.append((stream,))


class TestOracle:
    def test_answers_while_it_is_there(self) -> None:
        """Every key is passed once, in order; numbers are refused; afterwards the noise is used again."""
        stream, zero, weights = torch.tensor([3, 4]), torch.zeros(2).long(), torch.ones(2, 3).double()
        keys = (stream, torch.tensor(9), noise.XTC, zero)
        before, oracle = noise.uniform(*keys), Fixed()
        with noise.answered_by(oracle):
            coins, drawn = noise.coin(*keys, 0.0), noise.draw(*keys, weights)
            noise.folded(stream, noise.DRAFT, zero)
            with pytest.raises(RuntimeError, match=r"ask noise\.coin or noise\.draw"):
                noise.gumbel(*keys)

        assert [True, True] == coins.tolist()
        assert [2, 2] == drawn.tolist()
        assert 2 * [(3, 9, noise.XTC, 0), (4, 9, noise.XTC, 0)] + [(3,), (4,)] == oracle.keys
        assert torch.equal(before, noise.uniform(*keys))


class TestExponentialOfOne:
    @given(
        INT64,
        st.integers(0, 2**40),
        st.integers(1, 6),
        st.lists(st.integers(0, 2**20), min_size=1, max_size=9),
    )
    def test_is_close_to_the_numbers_that_count(
        self, stream: int, position: int, purpose: int, index: list[int]
    ) -> None:
        """Of the same bits: nothing but the logarithm's rounding tells them apart."""
        at = torch.tensor([stream]), torch.tensor([position])
        expected = noise.exponential(at[0], at[1], purpose, torch.tensor(index))
        numbers = noise.exponential_of_one(stream, position, purpose, np.array(index))

        assert np.allclose(expected.numpy(), numbers, rtol=1e-14, atol=0)
        assert torch.equal(-expected.log(), noise.gumbel(at[0], at[1], purpose, torch.tensor(index)))

    def test_cannot_be_enumerated(self) -> None:
        """No more than the others."""
        with (
            noise.answered_by(object()),  # type: ignore[arg-type]
            pytest.raises(RuntimeError, match="cannot be enumerated"),
        ):
            noise.exponential_of_one(1, 2, 3, np.array([4]))
