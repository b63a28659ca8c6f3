"""The scripted decoder."""

import pytest
import torch

from decodekit.testing import ScriptedDecoder, last_token, whole_prefix

from .scripted import TABLE, scripted


class TestScriptedDecoder:
    def test_looks_up_the_prefix(self) -> None:
        """Logits are the table's line for the ids in the slots up to the column."""
        decoder = scripted(line=last_token)
        logits = decoder.forward(
            torch.tensor([[1, 2, -1, -1], [-1, -1, 3, 4], [-1] * 4]), torch.tensor([0, -2, 0])
        )

        assert torch.equal(TABLE[[1, 2]], logits[0, :2])
        assert torch.equal(TABLE[[3, 4]], logits[1, 2:])

    def test_every_token_of_a_prefix_counts(self) -> None:
        """Another token anywhere, the newest too, or another order, is another line of 61."""
        prefixes = ([1, 2, 3], [1, 3, 2], [1, 2], [0, 1, 2, 3], [2, 2, 3], [1, 2, 4], [1, 2, 0])
        lines = {whole_prefix(p) % 61 for p in prefixes}

        assert len(prefixes) == len(lines)


class TestScriptedTrees:
    def test_a_column_sees_the_cache_and_its_path(self) -> None:
        """Nothing of the columns beside it, and nothing behind cache_pos."""
        decoder = ScriptedDecoder(TABLE, tree_widths=(4,))
        decoder.forward(torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([0]))
        logits = decoder.forward_tree(
            torch.tensor([[5, 4, 3, -1]]), torch.tensor([2]), torch.tensor([[-1, -1, 0, -1]])
        )
        prefixes = [1, 2, 5], [1, 2, 4], [1, 2, 5, 3]

        assert torch.equal(TABLE[[whole_prefix(prefix) % 31 for prefix in prefixes]], logits[0, :3])
        assert [1, 2, 5, 3, -1] == decoder.slots[0, :5].tolist()

    def test_a_chain_is_a_tree(self) -> None:
        """Of parents -1, 0, 1, ...: the same logits and the same cache."""
        one, other = (ScriptedDecoder(TABLE, tree_widths=(5,)) for _ in range(2))
        ids, start = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([0])

        assert torch.equal(one.forward(ids, start), other.forward_tree(ids, start, torch.arange(-1, 4)[None]))
        assert torch.equal(one.slots, other.slots)

    @pytest.mark.parametrize("widths", [(0,), (4, 4), (8, 4), (True,)])
    def test_refuses_widths_that_are_none(self, widths: tuple[int, ...]) -> None:
        """They are counts of columns, ascending."""
        with pytest.raises(ValueError, match="'tree_widths' must be positive and ascending: got"):
            ScriptedDecoder(TABLE, tree_widths=widths)
