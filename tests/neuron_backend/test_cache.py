import torch

from decodekit.neuron_backend.cache import CacheBuffers, PositionedCache
from decodekit.neuron_backend.geometry import Geometry, LayerGeometry

GEOMETRY = Geometry("Toy", (LayerGeometry(1, 2, 1, 3), LayerGeometry(1, 2, 1, 3)), 9, torch.float32)


def test_keys_and_values_may_differ_in_size():
    """Buffers hold one slot more than there are positions."""
    buffers = CacheBuffers.zeros(GEOMETRY, 2, 4)

    assert [tuple(buffer.shape) for buffer in buffers.keys] == [(2, 1, 5, 2)] * 2
    assert [tuple(buffer.shape) for buffer in buffers.values] == [(2, 1, 5, 3)] * 2


def test_each_row_writes_to_its_own_slots():
    """Row 0 writes slots 0 and 1, row 1 slots 3 and 2, and only in the layer that asks."""
    buffers = CacheBuffers.zeros(GEOMETRY, 2, 4)
    cache = PositionedCache(buffers.tensors, torch.tensor([[0, 1], [3, 2]]))
    states = torch.arange(1.0, 5.0).view(2, 1, 2, 1)

    keys, values = cache.update(states.expand(-1, -1, -1, 2), states.expand(-1, -1, -1, 3), 1)

    assert keys is buffers.keys[1]
    assert keys[:, 0, :, 1].tolist() == [[1.0, 2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 4.0, 3.0, 0.0]]
    assert torch.equal(keys[..., 0], values[..., 2])
    assert not buffers.keys[0].any()


def test_answers_what_layers_ask():
    """No tokens before, and as many slots as the buffers have."""
    cache = PositionedCache(CacheBuffers.zeros(GEOMETRY, 1, 4).tensors, torch.zeros(1, 1, dtype=torch.int64))

    assert (
        len(cache),
        cache.get_seq_length(),
        cache.get_query_offset(),
        cache.get_max_length(),
        cache.get_mask_sizes(1),
    ) == (2, 0, 0, 5, (5, 0))
