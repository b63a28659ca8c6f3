import pytest
import torch

from decodekit.neuron_backend.kv_cache.buffers import CacheBuffers
from decodekit.neuron_backend.kv_cache.geometry import Geometry, LayerGeometry

GEOMETRY = Geometry("Toy", (LayerGeometry(1, 2, 1, 3), LayerGeometry(1, 2, 1, 3)), 9, torch.float32)


def test_keys_and_values_may_differ_in_size():
    """Buffers hold the spare slot, scratch, the positions, and one slot that is never attended to."""
    buffers = CacheBuffers.zeros(GEOMETRY, 2, 4, scratch=3)

    assert [tuple(buffer.shape) for buffer in buffers.keys] == [(2, 1, 9, 2)] * 2
    assert [tuple(buffer.shape) for buffer in buffers.values] == [(2, 1, 9, 3)] * 2
    assert [-4, -3, -2, -1, 0, 1] == buffers.addresses(2).tolist()


@pytest.mark.parametrize("rows", [10**12, 10**30])
def test_a_cache_that_does_not_fit_is_refused(rows):
    """With its sizes, whatever torch says of them."""
    with pytest.raises(ValueError, match="the cache must fit into memory"):
        CacheBuffers.zeros(GEOMETRY, rows, 4)
