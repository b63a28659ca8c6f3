"""Histories."""

import torch

from decodekit.decoding import History


def test_room_for_a_draft() -> None:
    """A copy, no longer than the tokens and the draft, nor than the history."""
    one = torch.ones(2, dtype=torch.int64)
    history = History(torch.arange(40).view(2, 1, 20), torch.tensor([[3], [5]]), one, one)
    longer = history.with_room(4)

    assert torch.equal(history.ids[..., :9], longer.ids)
    longer.ids[:] = -1
    assert 0 == int(history.ids.min())
    assert torch.equal(history.ids, history.with_room(99).ids)
