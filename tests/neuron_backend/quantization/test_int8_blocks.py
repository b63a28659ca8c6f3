"""The layout of int8 weights for the CPU's kernels."""

import torch
from hypothesis import given, strategies as st

from decodekit.neuron_backend.quantization.int8_blocks import to_blocks, to_rows


@given(outputs=st.integers(1, 50), inputs=st.integers(1, 30), seed=st.integers(0, 100))
def test_blocks(outputs, inputs, seed):
    """Each weight plus 128 lies where the kernels look for it; rows come back."""
    rows = torch.randint(-127, 128, (outputs, inputs), generator=torch.Generator().manual_seed(seed)).to(
        torch.int8
    )

    blocks = to_blocks(rows)

    assert (torch.uint8, (-(-outputs // 16), -(-inputs // 4), 16, 4)) == (blocks.dtype, tuple(blocks.shape))
    assert blocks.is_contiguous()
    for output in range(outputs):
        for given_input in range(inputs):
            place = output // 16, given_input // 4, output % 16, given_input % 4
            assert int(rows[output, given_input]) + 128 == blocks[place]
    assert torch.equal(rows, to_rows(blocks, outputs, inputs))
