"""Forms of a write, against each slot by itself."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decodekit.neuron_backend.kv_cache.writes import (
    CacheWrite,
    write_by_heads,
    write_by_scatter,
    write_copy,
    write_in_place,
)
from decodekit.neuron_backend.lowering.export import lower, name_of

FORMS = (write_in_place, write_by_heads, write_by_scatter, write_copy)


def one_by_one(buffer: Tensor, slots: Tensor, states: Tensor) -> Tensor:
    """Each row, head and column by itself."""
    result = buffer.clone()
    for row, column in torch.cartesian_prod(*map(torch.arange, slots.shape)).tolist():
        for head in range(buffer.shape[1]):
            result[row, head, slots[row, column]] = states[row, head, column]
    return result


def names(write: CacheWrite) -> list[str]:
    """Operations of a lowered write, of a buffer of 2 rows, 3 heads, 7 slots and 4 numbers."""

    class Writes(nn.Module):
        def forward(self, buffer: Tensor, slots: Tensor, states: Tensor) -> Any:
            return write(buffer, torch.arange(2)[:, None], slots, states)

    graph = lower(
        Writes(), (torch.zeros(2, 3, 7, 4), torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 3, 5, 4))
    )
    return [name_of(node) for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("write", FORMS)
def test_every_form_writes_each_state_to_its_slot(write: CacheWrite) -> None:
    """Columns in any order, at other slots in each row; what is not written stays."""
    generator = torch.Generator().manual_seed(1)
    buffer = torch.randn(2, 3, 7, 4, generator=generator)
    states = torch.randn(2, 3, 5, 4, generator=generator)
    slots = torch.stack([torch.randperm(7, generator=generator)[:5] for _ in range(2)])
    expected = one_by_one(buffer, slots, states)

    assert torch.equal(expected, write(buffer, torch.arange(2)[:, None], slots, states))


@pytest.mark.parametrize("write", FORMS)
def test_padding_leaves_one_of_its_states_in_the_spare_slot(write: CacheWrite) -> None:
    """Three columns for one slot."""
    states = torch.tensor([1.0, 2.0, 3.0])[None, None, :, None].expand(2, 3, 3, 4)
    written = write(
        torch.zeros(2, 3, 7, 4), torch.arange(2)[:, None], torch.zeros(2, 3, dtype=torch.int64), states
    )

    assert {1.0, 2.0, 3.0} >= set(written[:, :, 0].flatten().tolist())
    assert not written[:, :, 1:].any()


def test_a_scatter_reads_the_buffer_itself() -> None:
    """Indices are widened; the buffer is neither transposed nor flattened nor copied before the write."""
    assert ["unsqueeze", "unsqueeze", "expand", "scatter", "copy_"] == names(write_by_scatter)
    assert "permute" in names(write_in_place)
