"""Places of temporary memory."""

from hypothesis import given, strategies as st

from decodekit.neuron_backend.targets.cpu.layered.memory_plan import ALIGNMENT, Lifetime, plan

lifetimes = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    st.integers(1, 1000),
    st.integers(0, 20),
    st.integers(0, 20),
)


@given(st.dictionaries(st.integers(), lifetimes, max_size=20))
def test_nothing_in_use_at_once_overlaps(wanted):
    """And all lies within the block."""
    found = plan(wanted)

    assert found.offsets.keys() == wanted.keys()
    for key, lifetime in wanted.items():
        start = found.offsets[key]
        assert start % ALIGNMENT == 0
        assert start + lifetime.size <= found.size
        for other, another in wanted.items():
            if other != key and lifetime.overlaps(another):
                end = found.offsets[other] + another.size
                assert end <= start or start + lifetime.size <= found.offsets[other]


def test_memory_is_used_again():
    """In a chain of calls, two pieces are in use at a time."""
    found = plan({number: Lifetime(100, number, number + 1) for number in range(10)})

    assert found.size == 2 * 128
