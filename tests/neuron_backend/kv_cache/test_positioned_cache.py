import pytest
import torch

from decodekit.neuron_backend.kv_cache.buffers import CacheBuffers
from decodekit.neuron_backend.kv_cache.geometry import Geometry, LayerGeometry
from decodekit.neuron_backend.kv_cache.positioned_cache import PositionedCache
from decodekit.neuron_backend.kv_cache.writes import (
    write_by_heads,
    write_by_scatter,
    write_copy,
    write_in_place,
)

GEOMETRY = Geometry("Toy", (LayerGeometry(1, 2, 1, 3), LayerGeometry(1, 2, 1, 3)), 9, torch.float32)


@pytest.mark.parametrize("write", [write_in_place, write_by_heads, write_by_scatter, write_copy])
def test_each_row_writes_to_its_own_slots(write):
    """Row 0 writes positions 0 and 1, row 1 position 3 and the spare slot, in the layer that asks."""
    buffers = CacheBuffers.zeros(GEOMETRY, 2, 4)
    cache = PositionedCache(
        buffers.tensors, torch.tensor([[0, 1], [3, -1]]), buffers.addresses(span=4), write
    )
    states = torch.arange(1.0, 5.0).view(2, 1, 2, 1)

    keys, values = cache.update(states.expand(-1, -1, -1, 2), states.expand(-1, -1, -1, 3), 1)

    assert [[[0.0, 1.0, 2.0, 0.0, 0.0]], [[4.0, 0.0, 0.0, 0.0, 3.0]]] == keys[..., 1].tolist()
    assert torch.equal(keys[..., 0], values[..., 2])
    assert not buffers.keys[0].any()
    assert torch.equal(keys, cache.tensors[1][:, :, :5])
    assert (write is not write_copy) == bool(buffers.keys[1].any())


@pytest.mark.parametrize("write", [write_in_place, write_by_heads, write_by_scatter, write_copy])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_marked_instead(number, write):
    """A key of row 0 and a value of row 1, each in one of two layers."""
    buffers = CacheBuffers.zeros(GEOMETRY, 2, 4)
    cache = PositionedCache(buffers.tensors, torch.tensor([[0, 1], [2, 3]]), buffers.addresses(span=4), write)
    states = torch.ones(2, 1, 2, 3)
    for layer in range(2):
        keys, values = states[..., :2].clone(), states.clone()
        if layer == 1:
            keys[0, 0, 1, 1] = number
            values[1, 0, 0, 2] = number
        keys, values = cache.update(keys, values, layer)

    assert [0, 1] == [keys[0, 0, 2, 1].item(), keys[0, 0, 2, 0].item()]
    assert [0, 1] == [values[1, 0, 3, 2].item(), values[1, 0, 3, 0].item()]
    assert [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0]] == cache.mark_overflow().tolist()
    assert all(buffer.isfinite().all() for buffer in cache.tensors)


def test_a_token_that_is_written_over_leaves_no_mark():
    """The mark belongs to the slot's newest token."""
    buffers = CacheBuffers.zeros(GEOMETRY, 1, 4)
    for number in (torch.nan, 1.0):
        cache = PositionedCache(buffers.tensors, torch.tensor([[2]]), buffers.addresses(span=4))
        for layer in range(2):
            cache.update(torch.full((1, 1, 1, 2), number), torch.full((1, 1, 1, 3), number), layer)
        marks = cache.mark_overflow()

    assert not marks.any()


def test_a_layer_gets_the_span_alone():
    """The reserved slots and the first positions; later slots are written but not attended to."""
    buffers = CacheBuffers.zeros(GEOMETRY, 1, 8, scratch=1)
    cache = PositionedCache(buffers.tensors, torch.tensor([[1]]), buffers.addresses(span=3))

    keys, values = cache.update(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 3), 0)

    assert ((1, 1, 5, 2), (1, 1, 5, 3)) == (tuple(keys.shape), tuple(values.shape))
    assert [3] == keys[0, 0, :, 0].nonzero().flatten().tolist()


class TestPositions:
    """Position of the token in each slot."""

    def test_are_addresses(self):
        """0 for reserved slots, which are masked anyway."""
        buffers = CacheBuffers.zeros(GEOMETRY, 2, 4, scratch=1)
        cache = PositionedCache(buffers.tensors, torch.tensor([[3], [1]]), buffers.addresses(span=4))

        assert [[0, 0, 0, 1, 2, 3]] == cache.positions.tolist()

    def test_of_scratch_are_those_of_the_columns_in_it(self):
        """A tree at position 2 whose second branch is in scratch, and a row of padding in scratch alone."""
        buffers = CacheBuffers.zeros(GEOMETRY, 2, 4, scratch=3)
        columns = torch.tensor([[2, 3, 2], [0, 0, 0]])
        written = torch.tensor([[2, 3, -4], [-2, -3, -4]])
        cache = PositionedCache(buffers.tensors, written, buffers.addresses(span=4), columns=columns)

        #            -4 -3 -2 -1  0  1  2  3
        assert [[2, 0, 0, 0, 0, 1, 2, 3], [0, 0, 0, 0, 0, 1, 2, 3]] == cache.positions.tolist()


def test_answers_what_layers_ask():
    """Sequence length 0, and as many slots as are attended to."""
    buffers = CacheBuffers.zeros(GEOMETRY, 1, 4)
    cache = PositionedCache(buffers.tensors, torch.zeros(1, 1, dtype=torch.int64), buffers.addresses(4))

    assert (
        len(cache),
        cache.get_seq_length(),
        cache.get_query_offset(),
        cache.get_max_length(),
        cache.get_mask_sizes(1),
    ) == (2, 0, 0, 5, (5, 0))
