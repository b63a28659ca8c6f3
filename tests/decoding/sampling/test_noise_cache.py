"""Numbers that are made for several positions at once are those of each."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding.sampling import noise, noise_cache
from decodekit.decoding.sampling.noise_cache import NoiseCache


def at(stream: int, position: int, count: int) -> list[float]:
    """By definition."""
    key = torch.tensor([stream]), torch.tensor([position])
    return noise.exponential(*key, noise.BLOCK, torch.arange(count)).tolist()


@given(
    st.lists(
        st.tuples(st.sampled_from((-7, 0, 2**62)), st.integers(0, 100), st.sampled_from((1, 5))), max_size=9
    )
)
def test_are_the_numbers_of_each_position(asked: list[tuple[int, int, int]]) -> None:
    """Bit for bit, in any order of access."""
    ahead = NoiseCache(noise.BLOCK)
    for key in asked:
        assert at(*key) == ahead.at(*key).tolist()


def test_are_made_once_for_the_positions_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 48 positions three times, of windows across an end not again, and anew when memory is full."""
    monkeypatch.setattr(noise_cache, "_BLOCKS", 2)
    made, exponential = [], noise.exponential

    def counted(*key: noise.Key) -> torch.Tensor:
        made.append(int(np.asarray(key[1]).min()))
        return exponential(*key)

    monkeypatch.setattr(noise, "exponential", counted)
    ahead = NoiseCache(noise.BLOCK)
    for first in range(45):
        for position in range(first, first + 4):
            ahead.at(1, position, 4)
    assert [0, 16, 32] == made
    ahead.at(2, 0, 4)
    ahead.at(1, 47, 4)

    assert [0, 32] == made[3:]


def test_cannot_be_enumerated() -> None:
    """Not even those that were made before."""
    ahead = NoiseCache(noise.BLOCK)
    ahead.at(1, 2, 3)
    with (
        noise.answered_by(object()),  # type: ignore[arg-type]
        pytest.raises(RuntimeError, match="cannot be enumerated"),
    ):
        ahead.at(1, 2, 3)
