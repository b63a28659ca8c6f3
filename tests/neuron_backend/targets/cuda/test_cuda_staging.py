"""Tensors of fixed places, one behind the other."""

import torch

from decodekit.neuron_backend.targets.cuda.cuda_staging import Staging, TensorSpec, size_of, tensors_in

SPECS = [
    TensorSpec((2, 3), torch.int64),
    TensorSpec((2, 3, 3), torch.bool),
    TensorSpec((0,), torch.float32),
    TensorSpec((5, 7), torch.float32),
]


def test_each_has_its_own_memory() -> None:
    """What is written into one is not seen in another, whatever its dtype."""
    block = torch.zeros(size_of(SPECS), dtype=torch.uint8)
    tensors = tensors_in(block, SPECS)
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)

    assert SPECS == [TensorSpec.of(tensor) for tensor in tensors]
    for number, tensor in enumerate(tensors):
        assert torch.equal(torch.full_like(tensor, number), tensor)
        assert tensor.is_contiguous()
        assert 0 == tensor.numel() or 0 == (tensor.data_ptr() - block.data_ptr()) % 256


def test_the_same_places_are_the_same_memory() -> None:
    """A program and who fills in its inputs lay them out on their own."""
    block = torch.zeros(size_of(SPECS), dtype=torch.uint8)
    tensors_in(block, SPECS)[3].fill_(1.5)

    assert 1.5 == tensors_in(block, SPECS)[3].mean()


def test_copies_move_what_they_are_told_to() -> None:
    """And leave the rest: logits stay on the device."""
    staging = Staging(torch.full((8,), 1, dtype=torch.uint8), torch.full((8,), 2, dtype=torch.uint8))
    staging.up(3)
    assert [1, 1, 1, 2, 2, 2, 2, 2] == staging.device.tolist()
    staging.down(5)
    assert [1, 1, 1, 2, 2, 1, 1, 1] == staging.host.tolist()
