"""Staging memory."""

import torch

from decodekit.neuron_backend.targets.cuda.cuda_staging import Staging, TensorSpec, size_of, tensors_in

SPECS = [
    TensorSpec((2, 3), torch.int64),
    TensorSpec((2, 3, 3), torch.bool),
    TensorSpec((0,), torch.float32),
    TensorSpec((5, 7), torch.float32),
]


def test_each_has_its_own_memory() -> None:
    """A write to one tensor does not change another, for any dtype."""
    block = torch.zeros(size_of(SPECS), dtype=torch.uint8)
    tensors = tensors_in(block, SPECS)
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)

    assert SPECS == [TensorSpec.of(tensor) for tensor in tensors]
    for number, tensor in enumerate(tensors):
        assert torch.equal(torch.full_like(tensor, number), tensor)
        assert tensor.is_contiguous()
        assert 0 == tensor.numel() or 0 == (tensor.data_ptr() - block.data_ptr()) % 256


def test_equal_specs_are_the_same_memory() -> None:
    """A program and its caller compute the layout independently."""
    block = torch.zeros(size_of(SPECS), dtype=torch.uint8)
    tensors_in(block, SPECS)[3].fill_(1.5)

    assert 1.5 == tensors_in(block, SPECS)[3].mean()


def test_copies_move_the_given_bytes() -> None:
    """And no others: logits stay on the device."""
    staging = Staging(torch.full((8,), 1, dtype=torch.uint8), torch.full((8,), 2, dtype=torch.uint8))
    staging.up(3)
    assert [1, 1, 1, 2, 2, 2, 2, 2] == staging.device.tolist()
    staging.down(5)
    assert [1, 1, 1, 2, 2, 1, 1, 1] == staging.host.tolist()
