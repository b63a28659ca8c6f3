"""The blocks of the vocabulary."""

from hypothesis import given
from hypothesis import strategies as st

from decodekit.decoding.sampling.noise import block_size


@given(st.integers(1, 10**12))
def test_the_root_is_rounded_up(vocab: int) -> None:
    """The smallest number whose square holds the vocabulary, exactly for squares too."""
    size = block_size(vocab)

    assert (size - 1) ** 2 < vocab <= size**2
    assert size == block_size(size**2)
