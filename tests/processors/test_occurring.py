"""The logits of tokens that occur in the history."""

import torch

from decodekit.decoding.history import History
from decodekit.processors.occurring import count, rewrite

from .by_hand import after

ONES = torch.ones(1, 1, 4)


class TestRewrite:
    def test_applies_the_formula_once_to_each_token(self) -> None:
        """A token that occurs three times is changed once."""
        history = after([2, 2, 2, 1])

        rewritten = rewrite(ONES, history, history.valid(), lambda seen: seen + 5)

        assert [1.0, 6.0, 6.0, 1.0] == rewritten[0, 0].tolist()

    def test_changes_nothing_where_no_slot_counts(self) -> None:
        """Not even token 0, at which the idle slots point."""
        history = after([0, 0])

        assert torch.equal(ONES, rewrite(ONES, history, history.valid() & False, lambda seen: seen + 5))

    def test_passes_over_ids_without_a_logit(self) -> None:
        """An embedding may know more ids than the head scores."""
        history = after([9, 3, 4])

        rewritten = rewrite(ONES, history, history.valid(), lambda seen: seen + 5)

        assert [1.0, 1.0, 1.0, 6.0] == rewritten[0, 0].tolist()

    def test_follows_each_columns_own_path(self) -> None:
        """In a tree, column i lies on path i."""
        history = History(
            torch.tensor([[[1], [2]]]), torch.ones(1, 2).long(), torch.zeros(1).long(), torch.zeros(1)
        )

        rewritten = rewrite(torch.zeros(1, 2, 3), history, history.valid(), lambda seen: seen + 1)

        assert [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]] == rewritten[0].tolist()


class TestCount:
    def test_counts_each_token(self) -> None:
        """Ids without a logit are passed over."""
        history = after([2, 9, 2, 1])

        assert [0.0, 1.0, 2.0, 0.0] == count(ONES, history, history.valid())[0, 0].tolist()
