from decodekit.neuron_backend.sizing.bandwidth import buffer_size, measure_bandwidth, physical_memory


def test_the_fastest_pass_counts():
    """Bytes over the shortest time."""
    times = iter([0.0, 0.5, 1.0, 1.25, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0])

    measured = measure_bandwidth(2**20, clock=lambda: next(times))

    assert 2**20 / 0.25 == measured.bytes_per_second
    assert "5 sums over 1 MiB of float32" in measured.method


def test_a_measurement_is_of_this_machine():
    """With a real clock, the result is a plausible bandwidth."""
    assert 0 < measure_bandwidth(2**24).bytes_per_second < 1e14


def test_the_buffer_is_larger_than_caches_and_smaller_than_memory():
    """Four times the cache, at least 256 MiB, at most a quarter of the memory."""
    gib = 2**30

    assert 2**28 == buffer_size(2**20, 64 * gib)
    assert 2 * gib == buffer_size(gib // 2, 64 * gib)
    assert gib == buffer_size(gib // 2, 4 * gib)
    assert 2**28 < physical_memory()
