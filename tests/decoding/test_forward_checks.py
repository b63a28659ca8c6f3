import re

import pytest
import torch

from decodekit.testing import ScriptedDecoder

LONG = torch.int64
GOOD = (torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]), torch.tensor([0, 3]))


def with_id(value: int) -> torch.Tensor:
    ids = GOOD[0].clone()
    ids[1, 2] = value
    return ids


@pytest.mark.parametrize(
    ("ids", "cache_pos", "message"),
    [
        pytest.param(torch.zeros(2, 4, dtype=LONG), GOOD[1], "(1, 5, 16): got 4", id="width"),
        pytest.param(torch.zeros(2, 0, dtype=LONG), GOOD[1], "(1, 5, 16): got 0", id="no-column"),
        pytest.param(torch.zeros(1, 5, dtype=LONG), GOOD[1], "2 rows: got 1 and 2", id="batch-of-ids"),
        pytest.param(GOOD[0], torch.zeros(3, dtype=LONG), "2 rows: got 2 and 3", id="batch-of-pos"),
        pytest.param(GOOD[0][0], GOOD[1], "2 dimension(s): got shape (5,)", id="flat-ids"),
        pytest.param(GOOD[0], GOOD[1][:, None], "1 dimension(s): got shape (2, 1)", id="deep-pos"),
        pytest.param(GOOD[0].to("meta"), GOOD[1], "on the host: got meta", id="device"),
        pytest.param(with_id(61), GOOD[1], "< 61: got 61 in row 1, column 2", id="id-too-large"),
        pytest.param(with_id(-2), GOOD[1], ">= -1 and < 61: got -2 in row 1, column 2", id="id-below"),
        pytest.param(GOOD[0], torch.tensor([0, 60]), "< 64: got 64 in row 1, column 4", id="beyond"),
        pytest.param(GOOD[0], torch.tensor([-1, 0]), ">= 0 and < 64: got -1 in row 0", id="negative"),
        pytest.param(GOOD[0], torch.tensor([0, 2**63 - 1]), "in row 1, column 0", id="overflow"),
        pytest.param(with_id(-1), torch.tensor([0, 61]), ": got 64 in row 1, column 3", id="under-padding"),
    ],
)
def test_breaking_a_rule_raises_before_anything_is_written(ids, cache_pos, message, llama):
    """The error names the argument, the rule and the value; the cache is unchanged; the next call works."""
    expected = llama.forward(*GOOD).clone()
    before = [buffer.clone() for buffer in llama.cache.tensors]

    with pytest.raises(ValueError, match=re.escape(message)):
        llama.forward(ids, cache_pos)

    assert all(map(torch.equal, before, llama.cache.tensors))
    assert torch.equal(expected, llama.forward(*GOOD))


@pytest.mark.parametrize(
    ("ids", "cache_pos", "message"),
    [
        pytest.param(GOOD[0].int(), GOOD[1], "ids must be an int64 tensor: got torch.int32", id="ids"),
        pytest.param(
            GOOD[0], GOOD[1].float(), "cache_pos must be an int64 tensor: got torch.float32", id="pos"
        ),
        pytest.param(GOOD[0].tolist(), GOOD[1], "ids must be an int64 tensor: got list", id="list"),
    ],
)
def test_a_wrong_type_is_a_type_error(ids, cache_pos, message, llama):
    """Only int64 tensors are read."""
    with pytest.raises(TypeError, match=re.escape(message)):
        llama.forward(ids, cache_pos)

    assert llama.forward(*GOOD).isfinite().all()


TREE = (
    torch.tensor([[1, 2, 3, -1], [4, 5, -1, -1]]),
    torch.tensor([0, 3]),
    torch.tensor([[-1, 0, 0, 9]] * 2),
)


def tree_with(i: int, row: int, column: int, value: int) -> tuple[torch.Tensor, ...]:
    """TREE with another id (0) or parent (2)."""
    tree = [tensor.clone() for tensor in TREE]
    tree[i][row, column] = value
    return tuple(tree)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        pytest.param(tuple(t[..., :3] for t in TREE), "as wide as one of (4,): got 3", id="width"),
        pytest.param((TREE[0][:1], *TREE[1:]), "2 rows: got 1 and 2", id="batch"),
        pytest.param((*TREE[:2], TREE[2][:1]), "the shape of ids, [2, 4]: got [1, 4]", id="parents-shape"),
        pytest.param(tree_with(0, 1, 0, 6), "< 6: got 6 in row 1, column 0", id="id-too-large"),
        pytest.param(tree_with(0, 1, 3, 2), "got some before row 1, column 3", id="padding-before-a-token"),
        pytest.param(tree_with(2, 0, 2, 2), "own column: got 2 in row 0, column 2", id="own-parent"),
        pytest.param(tree_with(2, 1, 1, -2), "own column: got -2 in row 1, column 1", id="parent-below"),
        pytest.param(
            (TREE[0], torch.tensor([11, 0]), TREE[2]), "< 12: got 12 in row 0, column 1", id="beyond"
        ),
        pytest.param((TREE[0], torch.tensor([0, -1]), TREE[2]), "got -1 in row 1, column 0", id="negative"),
    ],
)
def test_a_tree_that_breaks_a_rule_is_refused(tree, message):
    """Before anything is written, saying what, the rule and the value."""
    decoder = ScriptedDecoder(torch.zeros(3, 6), 2, 12, widths=(1, 4), scored_width=4, tree_widths=(4,))
    with pytest.raises(ValueError, match=re.escape(message)):
        decoder.forward_tree(*tree)

    assert (decoder.slots == -1).all()


def test_a_tree_may_lie_anywhere_under_padding():
    """Parents of padding are not looked at, and a leaf may stand at the last position."""
    decoder = ScriptedDecoder(torch.zeros(3, 6), 2, 12, widths=(1, 4), scored_width=4, tree_widths=(4,))
    idle = torch.tensor([[1, 2, 3, -1], [-1] * 4])

    assert decoder.forward_tree(idle, torch.tensor([10, 2**62]), TREE[2])[0, :3].isfinite().all()
